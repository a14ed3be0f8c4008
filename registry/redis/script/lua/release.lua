-- Gives a running attempt back to its lane, or ends it where it was cancelled.
-- ARGV: prefix, id, attempt, 1 if the try is given back, the event "aborted" for it.
-- Answer: {tokens settled, refunded} where it is ended, else a number.
local r = load(ARGV[2])
if not r or r.state ~= RUNNING or r.attempt ~= ARGV[3] then return 0 end
lives(r)
if r.cancel == 1 then
  finish(r, ARGV[5])
  return { settled, refunded }
end
if ARGV[4] == '1' then r.tries = r.tries - 1 end
r.state, r.attempt, r.owner, r.owned = QUEUED, '', '', 0
r.forecast = '' -- its wait says nothing about the forecast any more
save(r, 'state', 'attempt', 'owner', 'owned', 'tries', 'forecast')
count(r, true, true)
return 1
