-- Part of every script. ARGV[1] is the prefix of all keys. All times are Redis TIME
-- in milliseconds; durations too. Capital names are set by scripts.go.
--
--   r:<id>           hash    the record, FIELDS below; expires by itself
--   out              zset    what is outstanding, by when it stops counting (see member)
--   wait:<class>     zset    what of a tier and model waits, by when it was opened
--   lane:<lane>      hash    n, b: requests and bytes outstanding; q, t: requests and
--                            tokens waiting; t<shard>: tokens outstanding. No field is 0
--   model:<model>    hash    <tier>:o outstanding, :q :t :b waiting, :l lanes with
--                            something waiting; w: requests waiting in all tiers; and
--                            what the door knows (door.lua)
--   lanes:depth      zset    lanes with something waiting, by requests
--   waits:<lane>     zset    what of it waits, by when it was opened
--   bytes            number  outstanding over all lanes
--   models           zset    names, by last use
--   lanes, lanes:*           the lane directory (lanes.lua)
--   quota:<bucket>   text    how full a limit's bucket is (see bucket)
--
-- "out" and "wait" say what counts; the numbers are their sums, changed in the same
-- script and only here, so that no order of crashes parts them.
local call = redis.call
local P = ARGV[1]
local SKEW = 0
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + SKEW

local NOW = string.format('%.0f', now)

local QUEUED, RUNNING, STREAMING, FINISHED = 1, 2, 3, 4

local FIELDS = {
  'v', 'state', 'attempt', 'owner', 'owned', 'tries', 'cancel', 'orphan', 'reply', 'gateway', 'lane',
  'tier', 'model', 'deadline', 'tokens', 'bytes', 'shard', 'opened', 'forecast', 'charge',
}
local NUMBERS = { 'state', 'owned', 'tries', 'cancel', 'orphan', 'deadline', 'tokens', 'bytes', 'shard', 'opened' }

-- load reads a record; nil: there is none.
local function load(id)
  local values = call('HMGET', P .. 'r:' .. id, unpack(FIELDS))
  if not values[1] then return nil end
  if values[1] ~= VERSION then error('record of format ' .. values[1]) end
  local r = { id = id }
  for i, field in ipairs(FIELDS) do r[field] = values[i] or '' end
  for _, field in ipairs(NUMBERS) do r[field] = tonumber(r[field]) or 0 end
  return r
end

-- save writes the named fields; without names all of them.
local function save(r, ...)
  local fields, flat = { ... }, {}
  if #fields == 0 then fields = FIELDS end
  for _, field in ipairs(fields) do
    flat[#flat + 1] = field
    flat[#flat + 1] = r[field]
  end
  call('HSET', P .. 'r:' .. r.id, unpack(flat))
end

-- live_for sets when a record expires. It is also a write that Redis takes at
-- maxmemory, and then takes the script's other ones: what ends work or keeps it alive
-- begins with it.
local function live_for(r, ms) call('PEXPIRE', P .. 'r:' .. r.id, math.ceil(ms)) end

-- lives keeps a record that is not finished until KEEP after its deadline.
local function lives(r) live_for(r, math.max(r.deadline, now) - now + KEEP) end

-- append puts an event into the record's mailbox, a stream that its gateway makes and
-- keeps. It is called before a script changes anything, so that a mailbox that cannot
-- be written leaves all as it is: the gateway is there and is about to make it anew.
local function append(r, event)
  if r.reply == '' or event == '' then return end
  local added = call('XADD', r.reply, 'NOMKSTREAM', 'MAXLEN', '~', MAILBOX, '*', EVENT_FIELD, event)
  if not added and r.gateway ~= '' and call('EXISTS', r.gateway) == 1 then error('MAILBOX is not there') end
end

local function wait_key(c) return P .. 'wait:' .. #c.tier .. ':' .. c.tier .. ':' .. c.model end

-- member is a record's entry in "out". It carries what its counts are made of, so
-- that they are taken back although the record has expired.
local function member(c)
  return table.concat({ c.lane, c.shard, c.tokens, c.bytes, #c.tier, #c.model, c.tier .. c.model .. c.id }, ' ')
end

local function parse_member(m)
  local lane, shard, tokens, bytes, tier, model, rest = string.match(m, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  tier, model = tonumber(tier), tonumber(model)
  return {
    lane = lane, shard = tonumber(shard), tokens = tonumber(tokens), bytes = tonumber(bytes),
    tier = string.sub(rest, 1, tier), model = string.sub(rest, tier + 1, tier + model), id = string.sub(rest, tier + model + 1),
  }
end

local function model_used(model)
  call('ZADD', P .. 'models', now, model)
  call('PEXPIRE', P .. 'models', HOLD)
end

local function add(key, field, by)
  local n = call('HINCRBY', key, field, by)
  if n <= 0 then call('HDEL', key, field) end
  return n
end

-- shift changes the numbers by one request outstanding or waiting: 1, 0 or -1 each.
local function shift(c, out, waiting)
  local lane, model, tier = P .. 'lane:' .. c.lane, P .. 'model:' .. c.model, c.tier .. ':'
  if out ~= 0 then
    add(lane, 'n', out)
    add(lane, 'b', out * c.bytes)
    if c.shard >= 0 then add(lane, 't' .. c.shard, out * c.tokens) end
    add(model, tier .. 'o', out)
    if call('INCRBY', P .. 'bytes', out * c.bytes) <= 0 then call('DEL', P .. 'bytes') end
  end
  if waiting ~= 0 then
    local queued = add(lane, 'q', waiting)
    add(lane, 't', waiting * c.tokens)
    if queued <= 0 then
      add(model, tier .. 'l', -1)
      call('ZREM', P .. 'lanes:depth', c.lane)
    else
      call('ZADD', P .. 'lanes:depth', queued, c.lane)
      if waiting == 1 and queued == 1 then add(model, tier .. 'l', 1) end
    end
    add(model, tier .. 'q', waiting)
    add(model, tier .. 't', waiting * c.tokens)
    add(model, tier .. 'b', waiting * c.bytes)
    if add(model, 'w', waiting) == 2 and waiting > 0 then call('HSET', model, 'behind', now) end
  end
end

-- count makes a request count as said, whatever it counts as now. One that counts
-- stops by itself SILENT after its deadline and its owner's time, or after a cancel:
-- whoever should have ended it is gone.
local function count(c, out, waiting)
  if c.lane == '' then return end -- written again by renew, which does not know it
  local m, wait, own = member(c), wait_key(c), P .. 'waits:' .. c.lane
  local was_out, was_waiting = call('ZSCORE', P .. 'out', m), call('ZSCORE', wait, c.id)
  if out then
    local ends = now
    if c.cancel == 0 then ends = math.min(math.max(now, c.deadline, c.owned), now + HOLD / 2) end
    call('ZADD', P .. 'out', ends + SILENT, m)
  elseif was_out then
    call('ZREM', P .. 'out', m)
  end
  if waiting and not was_waiting then
    call('ZADD', wait, c.opened, c.id)
    call('ZADD', own, c.opened, c.id)
  elseif was_waiting and not waiting then
    call('ZREM', wait, c.id)
    call('ZREM', own, c.id)
  end
  shift(c, (out and 1 or 0) - (was_out and 1 or 0), (waiting and 1 or 0) - (was_waiting and 1 or 0))
  -- Nothing that counts may expire before it: what enters renews all, and what is
  -- renewed does so once or twice a minute.
  if not (out and (not was_out or now % 60000 < 6000)) and not (waiting and not was_waiting) then return end
  for _, key in ipairs({ P .. 'out', wait, P .. 'lane:' .. c.lane, P .. 'model:' .. c.model, P .. 'bytes', P .. 'models', P .. 'lanes:depth', own }) do
    call('PEXPIRE', key, HOLD)
  end
end

-- heal takes back at most that many counts nobody will take back.
local function heal(most)
  for _, m in ipairs(call('ZRANGEBYSCORE', P .. 'out', '-inf', now, 'LIMIT', 0, most)) do
    count(parse_member(m), false, false)
  end
end

-- learn is what the door learns from starts, per tier and model: :e is the EWMA of the
-- forecasts' error, :d of its deviation. Errors are relative to the forecast and a second.
local function learn(r, waited)
  local key, e, d = P .. 'model:' .. r.model, r.tier .. ':e', r.tier .. ':d'
  local known = call('HMGET', key, e, d)
  local bias, spread = tonumber(known[1] or 0), tonumber(known[2] or 0)
  local wrong = math.min((waited - r.forecast) / (r.forecast + 1000), ERROR_MOST)
  spread = spread + ERROR_GAIN * (math.abs(wrong - bias) - spread)
  bias = bias + ERROR_GAIN * (wrong - bias)
  call('HSET', key, e, string.format('%.6f', bias), d, string.format('%.6f', spread))
end

-- started is called when a request has left its lane to run. A start counts towards
-- the rate only while more waits: else it says how much came, not how much could go.
local function started(r)
  local key, second = P .. 'model:' .. r.model, math.floor(now / 1000)
  local slot = second % STARTS
  local at, n, took = 's' .. slot, 'n' .. slot, 'b' .. slot
  local known = call('HMGET', key, 'w', 'behind', at, n, took)
  if known[1] then
    local same = tonumber(known[3]) == second
    local since = math.min(now - tonumber(known[2] or now), STARTS * 1000)
    call('HSET', key, at, second, n, (same and tonumber(known[4]) or 0) + r.tokens, took, (same and tonumber(known[5]) or 0) + since, 'behind', now)
  end
  if r.forecast ~= '' and r.tries == 1 then learn(r, now - r.opened) end
end

-- A bucket of a limit is "<level> <at> <promised> <promised in the turn before>", or of a
-- window "<taken> <start>". bucket reads a leaky one as it is now, leaking at rate per ms.
-- Why there are turns is in package quota.
local function bucket(text, rate)
  local level, at, promised, earlier = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)')
  if not level then return 0, 0, 0 end
  at = tonumber(at)
  local turns = math.floor(now / QUOTA_TURN) - math.floor(at / QUOTA_TURN)
  if turns ~= 0 then
    earlier = turns == 1 and promised or 0
    promised = 0
  end
  return math.max(tonumber(level) - rate * math.max(now - at, 0), 0), tonumber(promised), tonumber(earlier)
end

-- fill writes a leaky bucket; it is forgotten once unused for QUOTA_IDLE, one in debt
-- when that is paid.
local function fill(key, level, promised, earlier, rate)
  local keep = math.max(QUOTA_IDLE, math.ceil(math.min(level / rate, 1e12)))
  local promises = ' 0 0'
  if promised > 0 or earlier > 0 then promises = string.format(' %.6f %.6f', promised, earlier) end
  call('SET', key, string.format('%.6f ', level) .. NOW .. promises, 'PX', keep)
end

-- window reads what was taken in the window that began at start, and fill_window writes.
local function window(text, start)
  local taken, began = string.match(text or '', '^(%S+) (%S+)$')
  began = tonumber(began or 0)
  return began == start and tonumber(taken) or 0, began
end

local function fill_window(key, taken, start, length)
  call('SET', key, string.format('%.0f %.0f', taken, start), 'PX', math.max(QUOTA_IDLE, start + length - now))
end

-- settle replaces what a record's charge has reserved by what was used; below 0: as it
-- was reserved. More than was reserved is a debt. A charge is "<tokens> <bucket>,<kind>,
-- <amount, or of a window its start>,<per> …". It is called once per record.
local settled, refunded = 0, 0
local function settle(r, used)
  local charge = r.charge or ''
  if charge == '' then return end
  r.charge = ''
  local reserved = tonumber(string.match(charge, '^%S+'))
  if used < 0 then used = reserved end
  settled, refunded = settled + used, refunded + math.max(reserved - used, 0)
  if used == reserved then return end
  for id, kind, number, per in string.gmatch(charge, ' ([^,]+),(%a),(%d+),(%d+)') do
    local key = P .. 'quota:' .. id
    local text = call('GET', key)
    number, per = tonumber(number), tonumber(per)
    if kind == 'w' then
      local taken, began = window(text, number)
      if began <= number then fill_window(key, math.max(taken + used - reserved, 0), number, per) end
    else
      local rate = number / per
      local level, promised, earlier = bucket(text, rate)
      fill(key, math.max(level + used - reserved, 0), promised, earlier, rate)
    end
  end
end

-- unsettled is the usage of a record that ends without its owner's word: none where no
-- byte was relayed, else as much as was reserved.
local function unsettled(r) return r.state == STREAMING and -1 or 0 end

-- finish ends a record: its event, its counts, and then only the memory of it. used is
-- in tokens, see settle; nil: the owner has not said.
local function finish(r, event, used)
  append(r, event)
  if r.state == QUEUED and r.tries == 0 and r.forecast ~= '' and now - r.opened > tonumber(r.forecast) then
    learn(r, now - r.opened) -- left unstarted, later than forecast
  end
  settle(r, used or unsettled(r))
  count(r, false, false)
  r.state = FINISHED
  save(r, 'state', 'charge')
  live_for(r, math.max(r.deadline - now, SILENT))
end

-- prolong gives the owner another term.
local function prolong(r)
  r.owned = now + OWNERSHIP
  save(r, 'state', 'attempt', 'owner', 'owned', 'tries', 'orphan')
  lives(r)
  count(r, true, false)
end

-- again is the record of a running attempt that Redis has lost, as its owner knows it:
-- outside any lane's count, until a claim says which lane it is.
local function again(id, attempt, owner, reply, gateway, state)
  local r = {
    v = VERSION, id = id, state = state, attempt = attempt, owner = owner, owned = 0, tries = 1, cancel = 0, orphan = 0,
    reply = reply, gateway = gateway, lane = '', tier = '', model = '', deadline = now, tokens = 0, bytes = 0, shard = -1,
    opened = now, forecast = '', charge = '',
  }
  save(r)
  lives(r)
  return r
end
