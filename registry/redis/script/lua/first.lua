-- Moves an attempt from running to streaming with its first event. ARGV: prefix, id,
-- attempt, event, then owner, reply and key that lives with the gateway as its claim
-- had them: a record that is not there is written again from them ('' = not known).
-- Answer: 1, or 0: not the owner any more.
local id, attempt, reply = ARGV[2], ARGV[3], ARGV[6]
live_for({ id = id }, KEEP)
local r = load(id)
if not r and reply ~= '' then r = again(id, attempt, ARGV[5], reply, ARGV[7], RUNNING) end
if not r or r.cancel == 1 or r.attempt ~= attempt then return 0 end
if r.state == RUNNING then
  append(r, ARGV[4])
  r.state = STREAMING
  prolong(r)
  return 1
end
return r.state == STREAMING and 1 or 0
