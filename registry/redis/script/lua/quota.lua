-- The limits of one request: looked at and taken from together. The arithmetic is that
-- of package quota, by the same vectors. What buckets are is in base.lua.

-- read_limits reads bucket, unit (t or r), amount, per, kind (l or w), slice, its
-- bucket, each, from ARGV[first] on, and how the buckets stand.
local function read_limits(first, tokens)
  local limits, keys = {}, {}
  for i = first, #ARGV, 7 do
    local l = {
      id = ARGV[i], key = P .. 'quota:' .. ARGV[i], kind = ARGV[i + 4], amount = tonumber(ARGV[i + 2]), per = tonumber(ARGV[i + 3]),
      amount_text = ARGV[i + 2], tokens = ARGV[i + 1] == 't', own = tonumber(ARGV[i + 5]),
    }
    l.cost = l.tokens and tokens or 1
    limits[#limits + 1], keys[#keys + 1] = l, l.key
    if l.own > 0 then
      l.slice, l.own_text = ARGV[i + 6], ARGV[i + 5]
      keys[#keys + 1] = P .. 'quota:' .. l.slice
    end
  end
  if #limits == 0 then return limits end
  local texts, next = call('MGET', unpack(keys)), 1
  for _, l in ipairs(limits) do
    l.text, next = texts[next] or '', next + 1
    if l.own > 0 then l.slice_text, next = texts[next] or '', next + 1 end
  end
  return limits
end

local function holds(rate) return math.max(rate * QUOTA_BURST, 1) end

-- over is how long a leaky bucket that holds so much needs until cost has room in it. What
-- is larger than the whole bucket has room in an empty one.
local function over(held, cost, rate)
  local most = holds(rate)
  if held <= QUOTA_SLACK or held + cost <= most + QUOTA_SLACK then return 0 end
  return (held + math.min(cost, most) - most) / rate
end

-- leaky is how a bucket stands, and has room for cost when.
local function leaky(id, key, text, amount, per, cost, slept)
  local rate = tonumber(amount) / per
  local level, promised, earlier = bucket(text, rate)
  return { id = id, key = key, amount = amount, rate = rate, level = level, promised = promised, earlier = earlier,
    remaining = holds(rate) - level, wait = over(slept and level or level + promised + earlier, cost, rate) }
end

local function write(b) fill(b.key, b.level, b.promised, b.earlier, b.rate) end

-- look leaves in each limit how it stands, and answers which has room last (0 = all
-- have) and when.
local function look(limits, slept)
  local tripped, longest = 0, 0
  for i, l in ipairs(limits) do
    local wait
    if l.kind == 'w' then
      l.start = now - now % l.per
      l.taken, l.began = window(l.text, l.start)
      l.remaining, l.reset = l.amount - l.taken, l.start + l.per - now
      wait = (l.taken > 0 and l.taken + l.cost > l.amount + QUOTA_SLACK) and l.reset or 0
    else
      l.all = leaky(l.id, l.key, l.text, l.amount_text, l.per, l.cost, slept)
      wait, l.remaining, l.reset = l.all.wait, l.all.remaining, l.all.level / l.all.rate
      if l.own > 0 then
        l.part = leaky(l.slice, P .. 'quota:' .. l.slice, l.slice_text, l.own_text, l.per, l.cost, slept)
        wait, l.remaining = math.min(wait, l.part.wait), math.max(l.remaining, l.part.remaining)
      end
    end
    if wait > longest then tripped, longest = i, wait end
  end
  return tripped, math.ceil(longest)
end

-- promise keeps the place of a request that sleeps until there is room.
local function promise(limits)
  for _, l in ipairs(limits) do
    for _, b in ipairs({ l.all, l.part }) do
      b.promised = b.promised + l.cost
      write(b)
    end
  end
end

-- kept takes back a promise that was made to a request of that cost.
local function kept(b, cost)
  local old = math.min(b.earlier, cost)
  b.earlier, b.promised = b.earlier - old, math.max(b.promised - (cost - old), 0)
end

-- take_limits takes a request that look let in, and answers its charge (see settle).
local function take_limits(limits, tokens, slept)
  local charge = tostring(tokens)
  for _, l in ipairs(limits) do
    local per = string.format('%.0f', l.per)
    if l.kind == 'w' then
      if l.began <= l.start then fill_window(l.key, l.taken + l.cost, l.start, l.per) end
      if l.tokens then charge = charge .. ' ' .. l.id .. string.format(',w,%.0f,', l.start) .. per end
    end
    for _, b in ipairs({ l.all, l.part }) do
      local takes = b == l.all or b.wait == 0
      if takes then
        b.level = b.level + l.cost
        if l.tokens then charge = charge .. ' ' .. b.id .. ',l,' .. b.amount .. ',' .. per end
      end
      if slept then kept(b, l.cost) end
      if takes or slept then write(b) end
    end
  end
  return #limits > 0 and charge or ''
end

-- standing adds to an answer which limit tripped, its wait, and what each has left and
-- when it is whole, as it is once this request has taken its part where it may.
local function standing(answer, limits, tripped, wait)
  answer[#answer + 1], answer[#answer + 2] = tripped, wait
  for _, l in ipairs(limits) do
    local remaining, reset = l.remaining, l.reset
    if tripped == 0 then
      remaining = remaining - l.cost
      if l.kind == 'l' then reset = reset + l.cost * l.per / l.amount end
    end
    answer[#answer + 1], answer[#answer + 2] = math.floor(math.max(remaining + QUOTA_SLACK, 0)), math.floor(reset)
  end
  return answer
end
