-- Reads the lane directory. ARGV: prefix, version the caller knows ('any': it wants no
-- entries), then the lanes it knows with their entries, given only when the directory
-- was lost: they are written again. Answer: version, how many lanes with something waiting follow, their ids (at
-- most WAITING, any of them), and where the version is another one all entries.
for i = 3, #ARGV, 2 do enlist(ARGV[i], ARGV[i + 1]) end
local waiting = call('ZRANDMEMBER', P .. 'lanes:depth', WAITING)
local answer = { lanes_version(), #waiting }
for _, lane in ipairs(waiting) do answer[#answer + 1] = lane end
if ARGV[2] ~= 'any' and answer[1] ~= ARGV[2] then
  for _, entry in ipairs(call('HVALS', P .. 'lanes:entry')) do answer[#answer + 1] = entry end
end
return answer
