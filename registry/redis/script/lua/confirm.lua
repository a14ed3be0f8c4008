-- A node has subscribed to lanes: who waits for that is told. ARGV: prefix, node, lanes.
for i = 3, #ARGV do
  local lane = ARGV[i]
  if call('HEXISTS', P .. 'lanes:entry', lane) == 1 and call('HSETNX', P .. 'lanes:ok', lane, ARGV[2]) == 1 then
    call('PUBLISH', P .. 'confirms', lane)
  end
end
call('PEXPIRE', P .. 'lanes:ok', HOLD)
return 0
