-- The door: when would a newcomer start, is that worth it, and when to come back.
-- The arithmetic is that of registry/door (DESIGN.md one level up).
--
-- In model:<model>: rate and rate_at, the drain rate in tokens per second, smoothed;
-- s<i>, n<i>, b<i>: a second, the tokens started in it while more waited, and how long
-- that took; behind: since when one request has waited behind another, or the last
-- start from then. Per tier: :k its rank, :e :d the forecasts' errors, :v how often a
-- kept place is taken (EWMA).
--   due:<class>        hash  slot -> tokens told to come back in it, and <slot>n ->
--                            places among them that can be known by their fingerprint
--   due:<class>:<fp>   zset  refused ids of a fingerprint, by slot
--   turns:<class>      zset  lanes, by until when each one's fair share is promised

local function read(key)
  local flat, fields = call('HGETALL', key), {}
  for i = 1, #flat, 2 do fields[flat[i]] = tonumber(flat[i + 1]) end
  return fields
end

-- read_model is the model's hash, with .tiers by name.
local function read_model(name)
  local m = read(P .. 'model:' .. name)
  local tiers = {}
  for field, value in pairs(m) do
    local tier, part = string.match(field, '^(.*):(%a)$')
    if tier then
      tiers[tier] = tiers[tier] or { o = 0, q = 0, t = 0, b = 0, l = 0, k = 0, e = 0, d = 0, v = 0 }
      tiers[tier][part] = value
    end
  end
  m.tiers = tiers
  return m
end

-- drain is the rate: as reported, smoothed over a second; for RATE_KEPT the last
-- known; then what was started while more waited, by the time in which more waited. An
-- outage counts as the whole window and no more, to be forgotten soon.
local function drain(m, key, reported)
  if reported > 0 then
    local rate, weight = m.rate or 0, 1
    if rate > 0 then weight = math.min(1, (now - m.rate_at) / 1000) end
    rate = rate + weight * (reported - rate)
    call('HSET', key, 'rate', string.format('%.6f', rate), 'rate_at', now)
    return rate
  end
  if m.rate and now - m.rate_at <= RATE_KEPT then return m.rate end
  local second, tokens, took = math.floor(now / 1000), 0, 1
  for i = 0, STARTS - 1 do
    if m['s' .. i] and second - m['s' .. i] < STARTS then
      tokens, took = tokens + m['n' .. i], took + m['b' .. i]
    end
  end
  if m.behind and (m.w or 0) > 1 then took = took + math.min(now - m.behind, STARTS * 1000) end
  return tokens / took * 1000
end

-- ahead is what would start before the visitor: the backlog of its tier and the
-- higher ones, but no more than its lane's fair turn among their lanes.
local function ahead(m, rank, lane, visitor)
  local requests, tokens, others = 0, 0, 0
  local own_requests, own_tokens = lane.q or 0, lane.t or 0
  for _, c in pairs(m.tiers) do
    if c.k <= rank then
      requests, tokens, others = requests + c.q, tokens + c.t, others + c.l
    end
  end
  if own_requests > 0 then others = others - 1 end
  return math.min(requests, own_requests + others * (own_requests + 1)),
    math.min(tokens, own_tokens + others * (own_tokens + visitor))
end

-- margin is the usual lateness and three mean deviations, at most half the limit.
local function margin(c, wait, limit)
  return math.min((math.max(0, c.e) + 3 * c.d) * (wait + 1000), limit / 2)
end

local function due_key(tier, model) return P .. 'due:' .. #tier .. ':' .. tier .. ':' .. model end

local function shown(m, tier, by)
  local c = m.tiers[tier]
  c.v = c.v + SHOWN_GAIN * (by - c.v)
  call('HSET', m.key, tier .. ':v', string.format('%.6f', c.v))
end

-- read_due is what is due when: all is the tokens by slot of this and higher tiers,
-- soon those likely to come before now + ms. On the way the places nobody came for are
-- forgotten.
local function read_due(m, rank, ms)
  local all, soon, here = {}, 0, math.floor(now / SLOT)
  local past, last = math.floor((now - PLACE_GRACE) / SLOT), math.floor((now + math.min(ms, RETRY_MOST)) / SLOT)
  for tier, c in pairs(m.tiers) do
    if c.k <= rank then
      local key, tokens = due_key(tier, m.name), 0
      for field, n in pairs(read(key)) do
        local slot = tonumber(field)
        if slot and slot >= past then
          all[slot] = (all[slot] or 0) + n
          if slot > here and slot <= last then tokens = tokens + n end
        elseif slot then
          local unseen = tonumber(call('HGET', key, field .. 'n') or 0)
          call('HDEL', key, field, field .. 'n')
          for _ = 1, math.min(unseen, 64) do shown(m, tier, 0) end
        end
      end
      soon = soon + c.v * tokens
    end
  end
  return all, soon
end

-- take is true once for a place that is due about now.
local function take(m, tier, fingerprint)
  if fingerprint == '0' then return false end
  local key = due_key(tier, m.name)
  local past = math.floor((now - PLACE_GRACE) / SLOT)
  local found = call('ZRANGEBYSCORE', key .. ':' .. fingerprint, past, math.floor(now / SLOT) + 1, 'WITHSCORES', 'LIMIT', 0, 1)
  if #found == 0 then return false end
  call('ZREM', key .. ':' .. fingerprint, found[1])
  add(key, string.format('%d', tonumber(found[2])) .. 'n', -1)
  shown(m, tier, 1)
  return true
end

local function turns_key(tier, model) return P .. 'turns:' .. #tier .. ':' .. tier .. ':' .. model end

-- read_turns is how many lanes of this and higher tiers have places, until when the
-- visitor's share is promised (nil = it has none), and the lanes of its own class.
local function read_turns(m, v)
  local lanes, class = 0, 0
  for tier, c in pairs(m.tiers) do
    if c.k <= v.rank then
      local n = call('ZCOUNT', turns_key(tier, m.name), '(' .. now, '+inf')
      lanes = lanes + n
      if tier == v.tier then class = n end
    end
  end
  local till = tonumber(call('ZSCORE', turns_key(v.tier, m.name), v.lane) or 0)
  return lanes, till > now and till or nil, class
end

-- soon is the work likely to come back while half of what the visitor sees is worked
-- off: of this and higher tiers, but no more than fits beside its lane's fair turns.
local function soon(m, v, rate)
  local some = false
  for _, c in pairs(m.tiers) do some = some or (c.k <= v.rank and c.v > 0) end
  if not some then return 0 end
  local ms = math.min(v.limit / 2, RETRY_MOST)
  local _, all = read_due(m, v.rank, ms)
  local lanes, till = read_turns(m, v)
  if till and lanes == 1 then return all end
  return math.min(all, m.tiers[v.tier].v * rate * PLACES_SHARE * math.min((till or now) - now, ms) / 1000)
end

-- turn is when the visitor's lane has had its places and this one, each lane that has
-- some getting as much. Alone it shares with nobody and has the places that are free.
local function turn(m, v, rate, excess)
  local lanes, till, class = read_turns(m, v)
  if not till then lanes = lanes + 1 end
  if lanes == 1 or class >= TURNS_MOST then return RETRY_MOST end
  return math.max(excess, (till or 0) - now) + lanes * v.tokens / rate * 1000
end

-- promise_turn remembers that the visitor's lane has its share until "till".
local function promise_turn(m, v, till)
  local key = turns_key(v.tier, m.name)
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  if call('ZCARD', key) < TURNS_MOST or call('ZSCORE', key, v.lane) then
    call('ZADD', key, till, v.lane)
    call('PEXPIRE', key, HOLD)
  end
end

-- told is when to come back, in ms: ms with the id's spread of up to a quarter, up to a
-- whole second, 1 to 60 s.
local function told(ms, spread)
  ms = math.min(math.max(ms, RETRY_LEAST), RETRY_MOST)
  return math.min(math.ceil(ms * spread / 1000) * 1000, RETRY_MOST)
end

-- keep finds the moment from which on there is room for the visitor, room growing at
-- rate from "excess" on, and keeps it: beside all places kept already, or, where that is
-- sooner, when its lane has its turn among the lanes that have places.
local function keep(m, v, rate, excess)
  rate = rate * PLACES_SHARE
  local first = math.floor(now / SLOT) + 1
  local last = first + RETRY_MOST / SLOT - 1
  local due, kept = read_due(m, v.rank, 0), v.tokens
  for slot = first, last do kept = kept + (due[slot] or 0) end
  local slot = last
  while slot >= first and kept <= rate * (slot * SLOT - now - excess) / 1000 do
    kept = kept - (due[slot] or 0)
    slot = slot - 1
  end
  local free = slot < last and (slot + 1) * SLOT - now or RETRY_MOST
  free = math.min(free, turn(m, v, rate, excess))
  if free >= RETRY_MOST then return RETRY_MOST, false end
  promise_turn(m, v, now + free)
  local retry = told(free, v.spread)
  local key, at = due_key(v.tier, m.name), math.floor((now + retry) / SLOT)
  call('HINCRBY', key, at, v.tokens)
  call('PEXPIRE', key, HOLD)
  if v.fingerprint == '0' or tonumber(call('HGET', key, at .. 'n') or 0) >= SLOT_PLACES then return retry, false end
  call('HINCRBY', key, at .. 'n', 1)
  call('ZADD', key .. ':' .. v.fingerprint, at, v.id)
  call('PEXPIRE', key .. ':' .. v.fingerprint, RETRY_MOST + 2 * PLACE_GRACE)
  return retry, true
end

-- judge admits or refuses: {reason, wait, ahead, retry, kept}, forecast ('' = not known).
local function judge(m, lane, v, full)
  local requests, tokens = ahead(m, v.rank, lane, v.tokens)
  local rate, c = drain(m, m.key, v.rate), m.tiers[v.tier]
  if rate <= 0 then
    if full then return { 'lane_full', 0, requests, told(RETRY_LEAST, v.spread), 0 }, '' end
    return { 'ok', 0, requests, 0, 0 }, ''
  end
  local wait = tokens / rate * 1000
  local excess = wait + margin(c, wait, v.limit) - v.limit
  local returned = take(m, v.tier, v.fingerprint)
  if full then return { 'lane_full', wait, requests, told(excess, v.spread), 0 }, wait end
  -- Nobody is refused an idle engine. A newcomer leaves the room of those who are due
  -- while half of what it sees is worked off.
  if requests == 0 or (excess <= 0 and (returned or excess + soon(m, v, rate) / rate * 1000 <= 0)) then
    return { 'ok', wait, requests, 0, 0 }, wait
  end
  local retry, kept = keep(m, v, rate, excess)
  return { 'server_is_overloaded', wait, requests, retry, kept and 1 or 0 }, wait
end
