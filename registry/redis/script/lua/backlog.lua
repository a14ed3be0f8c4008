-- What waits and runs. ARGV: prefix. Answer: tier, model, waiting requests, tokens and
-- bytes, age of the oldest, running; for each tier of each model.
heal(200)
local rows = {}
for _, model in ipairs(call('ZRANGE', P .. 'models', 0, -1)) do
  for tier, c in pairs(read_model(model).tiers) do
    local oldest = call('ZRANGE', wait_key({ tier = tier, model = model }), 0, 0, 'WITHSCORES')
    local age = oldest[2] and now - tonumber(oldest[2]) or 0
    for _, value in ipairs({ tier, model, c.q, c.t, c.b, age, c.o - c.q }) do rows[#rows + 1] = tostring(value) end
  end
end
return rows
