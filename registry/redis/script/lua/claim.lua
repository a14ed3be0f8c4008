-- Makes the caller the owner, or says what to do with the delivery.
-- ARGV: prefix, id, attempt, owner, lane, tier, model, deadline, reply, tokens, key that
-- lives with the gateway ('' = do not look), pace in starts per second (0 = none),
-- "<reason> <attempt>" of the event that follows, the event, the lane's key.
-- Answer: {action, after, reason, tries, tokens settled, refunded}, or {'encode', attempt, reason}: call again
-- with that terminal event, which only the caller can encode. Nothing has changed then.
local id, attempt, deadline, live, rate = ARGV[2], ARGV[3], tonumber(ARGV[8]), ARGV[11], tonumber(ARGV[12])
local encoded, event = ARGV[13], ARGV[14]

local r = load(id)
if not r then
  if now >= deadline then return { 'ack', 0, 'queue_deadline_exceeded', 0 } end
  r = {
    v = VERSION, id = id, state = QUEUED, attempt = '', owner = '', owned = 0, tries = 0, cancel = 0, orphan = 0,
    reply = ARGV[9], gateway = live, lane = ARGV[5], tier = ARGV[6], model = ARGV[7], deadline = deadline, tokens = tonumber(ARGV[10]),
    bytes = RECORD_BYTES, shard = -1, opened = now, forecast = '', charge = '',
  }
  save(r)
  lives(r)
  model_used(r.model)
  count(r, true, true)
  enlist(r.lane, '1 ' .. ARGV[15])
end

if r.lane == '' and r.state ~= FINISHED then -- written again by renew: now its lane is known
  r.lane, r.tier, r.model, r.deadline, r.tokens, r.bytes = ARGV[5], ARGV[6], ARGV[7], deadline, tonumber(ARGV[10]), RECORD_BYTES
  save(r, 'lane', 'tier', 'model', 'deadline', 'tokens', 'bytes')
  model_used(r.model)
end

local function answer(action, reason, after) return { action, string.format('%.0f', math.ceil(after or 0)), reason, r.tries, settled, refunded } end

-- over ends the record with an event of the attempt that ran last.
local function over(reason)
  if encoded ~= reason .. ' ' .. r.attempt then return { 'encode', r.attempt, reason } end
  finish(r, event)
  return answer('ack', reason)
end

-- pace is how long the lane's next start must wait, 0 = it may start and is counted: a
-- GCRA with a tolerance of one interval, at least 150 ms. "pace:" is the earliest
-- regular time of the next start; "paced:" who was refused and is still out, by the
-- time its start is due: the k-th is told the k-th free one. At most PACE_MOST, so
-- that a changed pace is soon known to all.
local function pace()
  if rate <= 0 then return 0 end
  local step, key, out = 1000 / rate, P .. 'pace:' .. r.lane, P .. 'paced:' .. r.lane
  local regular = math.max(tonumber(call('GET', key) or 0), now)
  local free = regular - math.max(step, 150) - now
  if free <= 0 then
    call('SET', key, string.format('%.3f', regular + step), 'PX', math.ceil(regular + step - now))
    call('ZREM', out, id)
    return 0
  end
  call('ZREMRANGEBYSCORE', out, '-inf', now - 1000)
  local before = call('ZRANK', out, id) or call('ZCARD', out)
  local after = free + before * step
  call('ZADD', out, string.format('%.0f', now + after), id)
  call('PEXPIRE', out, math.ceil(after) + 2000)
  return math.min(after, PACE_MOST)
end

local owned = now < r.owned
if r.state == FINISHED then return answer('ack', 'already_done') end
if r.cancel == 1 then
  if not owned then return over('aborted') end
  return answer('ack', 'aborted')
end
if r.state == RUNNING and r.attempt == attempt then
  prolong(r)
  return answer('run', 'ok')
end
if r.state ~= QUEUED and owned then return answer('suspend', 'live_owner', r.owned - now + 50) end
if r.state == STREAMING then return over('upstream_lost') end
if r.tries >= MAX_TRIES then return over('tries_used') end
if live ~= '' and call('EXISTS', live) == 0 then
  if r.orphan == 0 then
    r.orphan = 1
    save(r, 'orphan')
    return answer('suspend', 'orphan', ORPHAN_WAIT)
  end
  finish(r, '')
  return answer('ack', 'orphan')
end
local after = pace()
if after > 0 then return answer('suspend', 'lane_pace', after) end

if call('HSETNX', P .. 'lanes:ok', r.lane, ARGV[4]) == 1 then lanes_keep() end -- its consumer is here

local waited = r.state == QUEUED
r.state, r.attempt, r.owner, r.orphan, r.tries = RUNNING, attempt, ARGV[4], 0, r.tries + 1
prolong(r)
if waited then started(r) end
return answer('run', 'ok')
