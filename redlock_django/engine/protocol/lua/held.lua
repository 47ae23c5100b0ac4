-- Return the start of the index: the held resources, in the order in which they expire.
-- KEYS: held
-- ARGV: round, how many resources at most
-- -> an array: round, status, TIME us in one string, number of held resources, then each resource
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = string.format('%.0f', math.floor(now / 1000))
local stale = redis.call('ZRANGEBYSCORE', KEYS[1], 0, '(' .. now_ms, 'LIMIT', 0, 100)
if #stale > 0 then
  redis.call('ZREM', KEYS[1], unpack(stale))
end
local reply = { struct.pack('<i8i8i8', tonumber(ARGV[1]), GRANTED, now), redis.call('ZCOUNT', KEYS[1], now_ms, '+inf') }
local names = redis.call('ZRANGEBYSCORE', KEYS[1], now_ms, '+inf', 'LIMIT', 0, ARGV[2])
for index, name in ipairs(names) do  -- unpack() takes 8,000 at most
  reply[2 + index] = name
end
return reply
