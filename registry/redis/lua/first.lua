-- Moves an attempt from running to streaming with its first event.
-- ARGV: prefix, id, attempt, event. Answer: 1, or 0: not the owner any more.
local r = load(ARGV[2])
if not r or r.cancel == 1 or r.attempt ~= ARGV[3] then return 0 end
if r.state == RUNNING then
  lives(r)
  append(r, ARGV[4])
  r.state = STREAMING
  prolong(r)
  return 1
end
return r.state == STREAMING and 1 or 0
