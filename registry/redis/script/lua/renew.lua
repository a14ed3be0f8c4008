-- Prolongs what an owner runs. A record that is not there is written again, outside
-- any lane's count. ARGV: prefix, owner, then id, attempt, reply, key that lives with
-- its gateway, 1 if a byte was relayed, each. Answer: one number each, 1 = lost.
local lost = {}
for i = 3, #ARGV, 5 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  live_for({ id = id }, KEEP)
  local r = load(id) or again(id, attempt, ARGV[2], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4] == '1' and STREAMING or RUNNING)
  if r.cancel == 1 or r.attempt ~= attempt or (r.state ~= RUNNING and r.state ~= STREAMING) then
    lost[#lost + 1] = 1
  else
    r.owner = ARGV[2]
    prolong(r)
    lost[#lost + 1] = 0
  end
end
return lost
