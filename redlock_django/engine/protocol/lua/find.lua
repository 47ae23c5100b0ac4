-- Search the index: one step of ZSCAN.
-- KEYS: held
-- ARGV: round, cursor, pattern, how many entries to examine
-- -> round, status, TIME us, cursor, then each resource found and its remaining ms
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local step = redis.call('ZSCAN', KEYS[1], ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local reply = { tonumber(ARGV[1]), GRANTED, now, step[1] }
for index = 1, #step[2], 2 do
  local score = tonumber(step[2][index + 1])
  if score >= now_ms then
    reply[#reply + 1] = step[2][index]
    reply[#reply + 1] = score == math.huge and -1 or score - now_ms
  end
end
return reply
