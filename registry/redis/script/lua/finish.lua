-- Ends a record with its terminal event, once.
-- ARGV: prefix, id, attempt ('' = it never started), event, attempt of the event that
-- follows with a mark before it ('' = none), upstream_lost for that attempt, then as in
-- first.lua, then the tokens used (-1 = as many as were reserved).
-- Answer: {1 it is over, 0 another attempt lives, tokens settled, refunded}; or its
-- attempt: call again with an event that says upstream_lost for it. Nothing has changed
-- then.
local r = load(ARGV[2])
if not r and ARGV[8] ~= '' then
  live_for({ id = ARGV[2] }, KEEP)
  r = again(ARGV[2], ARGV[3], ARGV[7], ARGV[8], ARGV[9], STREAMING)
end
if not r or r.state == FINISHED then return { 1, 0, 0 } end
local event, used = ARGV[4], tonumber(ARGV[10])
if r.state ~= QUEUED and r.attempt ~= ARGV[3] then
  if now < r.owned then return { 0, 0, 0 } end
  if r.state == STREAMING then
    -- The client is bound to the dead attempt and would not hear this one.
    if ARGV[5] ~= ':' .. r.attempt then return ':' .. r.attempt end
    event, used = ARGV[6], nil
  end
end
lives(r)
finish(r, event, used)
return { 1, settled, refunded }
