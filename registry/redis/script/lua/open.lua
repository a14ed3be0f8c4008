-- Creates the record of a request, or refuses and leaves no count behind.
-- ARGV: prefix, id, lane, tier, rank, model, reply, deadline, tokens, bytes, limit,
-- fingerprint, live engines, drain rate, spread, lane's key, key that lives with the gateway,
-- the lane's most requests, bytes and shards, patience, 1 if it has slept, and its limits, see read_limits.
-- Answer: {reason, wait, ahead, retry, kept, shard, lane confirmed}, then of a new request
-- what "standing" adds.
local id, L, tier, rank, model = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local reply, deadline, tokens, bytes = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local v = {
  id = id, lane = L, tier = tier, rank = rank, tokens = tokens, limit = tonumber(ARGV[11]), fingerprint = ARGV[12],
  rate = tonumber(ARGV[14]), spread = tonumber(ARGV[15]),
}

local function answer(a, shard)
  a[2] = string.format('%.3f', a[2])
  a[6], a[7] = shard, call('HEXISTS', P .. 'lanes:ok', L)
  return a
end

local r = load(id)
if r then return answer({ 'ok', tonumber(r.forecast) or 0, 0, 0, 0 }, r.shard) end
if tonumber(ARGV[13]) <= 0 then return answer({ 'no_engine', 0, 0, told(NO_ENGINE, v.spread), 0 }, 0) end
heal(20)

local slept, limits = ARGV[22] == '1', read_limits(23, tokens)
local tripped, until_room = look(limits, slept)
if tripped > 0 then
  local budget = limits[tripped].kind == 'w' and limits[tripped].per >= QUOTA_DAY
  if not slept and not budget and until_room <= tonumber(ARGV[21]) then promise(limits) end
  return standing(answer({ budget and 'insufficient_quota' or 'rate_limit_exceeded', 0, 0, 0, 0 }, 0), limits, tripped, until_room)
end

local lane, m = read(P .. 'lane:' .. L), read_model(model)
m.key, m.name = P .. 'model:' .. model, model
if not m.tiers[tier] or m.tiers[tier].k ~= rank then
  m.tiers[tier] = m.tiers[tier] or { o = 0, q = 0, t = 0, b = 0, l = 0, k = 0, e = 0, d = 0, v = 0 }
  m.tiers[tier].k = rank
  call('HSET', m.key, tier .. ':k', rank)
end
model_used(model)

local total = tonumber(call('GET', P .. 'bytes') or 0)
local full = (lane.n or 0) >= tonumber(ARGV[18]) or (lane.b or 0) + bytes > tonumber(ARGV[19]) or total + bytes > TOTAL_BYTES
local a, forecast = judge(m, lane, v, full)
if a[1] ~= 'ok' then
  call('PEXPIRE', m.key, HOLD)
  return answer(a, 0)
end

-- The lowest shard with nothing outstanding, else the one with the fewest tokens;
-- every request has at least one.
local shard, fewest = 0, math.huge
local most = tonumber(ARGV[20])
for s = 0, most - 1 do
  local held = lane['t' .. s] or 0
  if held < fewest then shard, fewest = s, held end
  if held == 0 then break end
end

r = {
  v = VERSION, id = id, state = QUEUED, attempt = '', owner = '', owned = 0, tries = 0, cancel = 0, orphan = 0,
  reply = reply, gateway = ARGV[17], lane = L, tier = tier, model = model, deadline = deadline, tokens = tokens, bytes = bytes,
  shard = shard, opened = now, forecast = forecast, charge = take_limits(limits, tokens, slept),
}
save(r)
lives(r)
count(r, true, true)

-- A lane is listed as wide as it is used, so that agents subscribe few shards of many
-- lanes; from the second shard on twice as wide, so that the next one is subscribed
-- before it is used.
local width = 1
while shard > 0 and width < 2 * (shard + 1) do width = 2 * width end
enlist(L, math.min(width, most) .. ' ' .. ARGV[16])
return standing(answer(a, shard), limits, 0, 0)
