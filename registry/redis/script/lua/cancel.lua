-- Ends a request that nobody runs, without an event: the caller is the one who waits.
-- A running one is marked and its owner told, each time. ARGV: prefix, id, 1 to leave a
-- running one alone. Answer: {state before, owner, attempt, tokens settled,
-- refunded}.
local r, only = load(ARGV[2]), ARGV[3] == '1'
if not r then return { 0, '', '', 0, 0 } end
local dead, found = now >= r.owned, { r.state, r.owner, r.attempt, 0, 0 }
if r.state == FINISHED or (only and (r.state == STREAMING or (r.state == RUNNING and not dead))) then return found end
live_for(r, SILENT) -- its owner finishes it, or is dead by then
if dead then
  if r.state == RUNNING then found[1] = QUEUED end -- it waits for its next start
  finish(r, '')
  found[4], found[5] = settled, refunded
elseif r.cancel == 0 then
  r.cancel = 1
  save(r, 'cancel')
  count(r, true, false)
end
call('PUBLISH', P .. 'cancels', table.concat({ r.owner, ARGV[2], r.attempt }, '\n'))
return found
