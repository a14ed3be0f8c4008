-- The lanes with most waiting. ARGV: prefix, how many at most. Answer: in how many lanes
-- something waits, then per lane its entry in the directory, requests and tokens that
-- wait, age of the oldest (0 = not known), requests that run, shards in use. What the set
-- of depths says of a lane that another version has emptied is taken back.
heal(200)
local depths = P .. 'lanes:depth'
local rows = {}
for _, lane in ipairs(call('ZREVRANGE', depths, 0, tonumber(ARGV[2]) - 1)) do
  local n, shards = { n = 0, q = 0, t = 0 }, 0
  local fields = call('HGETALL', P .. 'lane:' .. lane)
  for i = 1, #fields, 2 do
    n[fields[i]] = tonumber(fields[i + 1])
    if string.match(fields[i], '^t%d') then shards = shards + 1 end
  end
  local entry = call('HGET', P .. 'lanes:entry', lane)
  if n.q <= 0 then
    call('ZREM', depths, lane)
    call('DEL', P .. 'waits:' .. lane)
  elseif entry then
    local oldest = call('ZRANGE', P .. 'waits:' .. lane, 0, 0, 'WITHSCORES')
    local age = oldest[2] and math.max(now - tonumber(oldest[2]), 0) or 0
    for _, value in ipairs({ entry, n.q, n.t, age, n.n - n.q, shards }) do rows[#rows + 1] = tostring(value) end
  end
end
table.insert(rows, 1, tostring(call('ZCARD', depths)))
return rows
