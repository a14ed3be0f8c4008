-- The limits of one request: looked at and taken from together. The arithmetic is that
-- of package quota, by the same vectors. What buckets are is in base.lua.

-- read_limits reads bucket, unit (t or r), amount, per, kind (l or w), slice, its
-- bucket, each, from ARGV[first] on, and how the buckets stand.
local function read_limits(first, tokens)
  local limits, keys = {}, {}
  for i = first, #ARGV, 7 do
    local l = {
      id = ARGV[i], unit = ARGV[i + 1], amount = tonumber(ARGV[i + 2]), per = tonumber(ARGV[i + 3]),
      kind = ARGV[i + 4], own = tonumber(ARGV[i + 5]), slice = ARGV[i + 6],
    }
    l.cost = l.unit == 'r' and 1 or tokens
    limits[#limits + 1] = l
    keys[#keys + 1] = P .. 'quota:' .. l.id
    keys[#keys + 1] = P .. 'quota:' .. (l.own > 0 and l.slice or l.id)
  end
  if #limits == 0 then return limits end
  local texts = call('MGET', unpack(keys))
  for i, l in ipairs(limits) do l.text, l.slice_text = texts[2 * i - 1] or '', texts[2 * i] or '' end
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
local function leaky(id, text, rate, cost, slept)
  local level, promised, earlier = bucket(text, rate)
  return { id = id, level = level, promised = promised, earlier = earlier, rate = rate, remaining = holds(rate) - level,
    wait = over(slept and level or level + promised + earlier, cost, rate) }
end

local function write(b) fill(P .. 'quota:' .. b.id, b.level, b.promised, b.earlier, b.rate) end

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
      l.all = leaky(l.id, l.text, l.amount / l.per, l.cost, slept)
      wait, l.remaining, l.reset = l.all.wait, l.all.remaining, l.all.level / l.all.rate
      if l.own > 0 then
        l.part = leaky(l.slice, l.slice_text, l.own / l.per, l.cost, slept)
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
  local charge = { tostring(tokens) }
  local function charged(l, id, number, kind)
    if l.unit == 't' then charge[#charge + 1] = string.format('%s,%.17g,%s,%.0f', id, number, kind, l.per) end
  end
  for _, l in ipairs(limits) do
    if l.kind == 'w' then
      if l.began <= l.start then fill_window(P .. 'quota:' .. l.id, l.taken + l.cost, l.start, l.per) end
      charged(l, l.id, l.start, 'w')
    end
    for _, b in ipairs({ l.all, l.part }) do
      local takes = b == l.all or b.wait == 0
      if takes then
        b.level = b.level + l.cost
        charged(l, b.id, b.rate, 'l')
      end
      if slept then kept(b, l.cost) end
      if takes or slept then write(b) end
    end
  end
  return #limits > 0 and table.concat(charge, ' ') or ''
end

-- standing adds to an answer which limit tripped, its wait, and what each has left and
-- when it is whole, as it is once this request has taken its part where it may.
local function standing(answer, limits, tripped, wait)
  answer[#answer + 1], answer[#answer + 2] = tripped, string.format('%.0f', wait)
  for _, l in ipairs(limits) do
    local remaining, reset = l.remaining, l.reset
    if tripped == 0 then
      remaining = remaining - l.cost
      if l.kind == 'l' then reset = reset + l.cost * l.per / l.amount end
    end
    answer[#answer + 1] = string.format('%.0f', math.floor(math.max(remaining + QUOTA_SLACK, 0)))
    answer[#answer + 1] = string.format('%.0f', math.floor(reset))
  end
  return answer
end
