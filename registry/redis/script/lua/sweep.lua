-- Takes back counts nobody will take back, and forgets idle lanes, engines and models.
-- Every process calls it once a second, and soon again where more was idle. ARGV:
-- prefix. Answer: how many lanes were idle, 100 at most.
heal(200)
local idle = call('ZRANGEBYSCORE', P .. 'lanes', '-inf', now - LANE_IDLE, 'LIMIT', 0, 100)
for _, lane in ipairs(idle) do
  if call('EXISTS', P .. 'lane:' .. lane) == 1 then
    call('ZADD', P .. 'lanes', now, lane)
  else
    delist(lane)
  end
end
if #idle > 0 or now % 60000 < 6000 then lanes_keep() end
local gone = call('ZRANGEBYSCORE', P .. 'engines', '-inf', now - ENGINE_KEPT - 1)
for _, node in ipairs(gone) do
  call('ZREM', P .. 'engines', node)
  call('HDEL', P .. 'engines:entry', node)
end
call('ZREMRANGEBYSCORE', P .. 'models', '-inf', now - HOLD)
return #idle
