-- The engine directory: node -> entry, and when it was last renewed.
-- ARGV: prefix; with node and entry it renews that one first. Without: answers node,
-- entry, time of the renewal, each.
if ARGV[2] then
  call('ZADD', P .. 'engines', now, ARGV[2])
  call('HSET', P .. 'engines:entry', ARGV[2], ARGV[3])
  call('PEXPIRE', P .. 'engines', ENGINE_KEPT)
  call('PEXPIRE', P .. 'engines:entry', ENGINE_KEPT)
  return 0
end
local rows = {}
local seen = call('ZRANGEBYSCORE', P .. 'engines', now - ENGINE_KEPT, '+inf', 'WITHSCORES')
for i = 1, #seen, 2 do
  local entry = call('HGET', P .. 'engines:entry', seen[i])
  if entry then
    for _, value in ipairs({ seen[i], entry, seen[i + 1] }) do rows[#rows + 1] = value end
  end
end
return rows
