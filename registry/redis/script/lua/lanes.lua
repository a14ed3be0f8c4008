-- The lane directory, for scripts that write it.
--
--   lanes          zset    lane, by when it last had work
--   lanes:entry    hash    lane -> "<width> <key as JSON>"
--   lanes:version  number  counts the changes of lanes:entry
--   lanes:epoch    number  when the directory was made: another one means it was lost
--   lanes:ok       hash    lane -> a node that has subscribed to it
--
-- Channel "lanes" carries "<version> <entry>" of a lane that is new or wider, and with
-- the width 0 of one that goes; "confirms" a lane.

local function lanes_version() return (call('GET', P .. 'lanes:epoch') or '0') .. '.' .. (call('GET', P .. 'lanes:version') or '0') end

local function lanes_changed()
  call('SET', P .. 'lanes:epoch', string.format('%.0f', now), 'NX')
  call('INCR', P .. 'lanes:version')
end

-- lanes_keep is called after every change, and now and then by sweep.lua.
local function lanes_keep()
  for _, key in ipairs({ 'lanes', 'lanes:entry', 'lanes:version', 'lanes:epoch', 'lanes:ok' }) do
    call('PEXPIRE', P .. key, HOLD)
  end
end

-- enlist writes a lane's entry, and announces one that is new or wider.
local function enlist(lane, entry)
  call('ZADD', P .. 'lanes', now, lane)
  local old = call('HGET', P .. 'lanes:entry', lane)
  if not old or tonumber(string.match(entry, '^%d+')) > tonumber(string.match(old, '^%d+')) then
    call('HSET', P .. 'lanes:entry', lane, entry)
    lanes_changed()
    call('PUBLISH', P .. 'lanes', lanes_version() .. ' ' .. entry)
    lanes_keep()
  end
end

-- delist takes an idle lane out.
local function delist(lane)
  local entry = call('HGET', P .. 'lanes:entry', lane)
  call('ZREM', P .. 'lanes', lane)
  call('HDEL', P .. 'lanes:entry', lane)
  call('HDEL', P .. 'lanes:ok', lane)
  if entry then
    lanes_changed()
    call('PUBLISH', P .. 'lanes', lanes_version() .. ' 0' .. string.match(entry, ' .*'))
  end
end
