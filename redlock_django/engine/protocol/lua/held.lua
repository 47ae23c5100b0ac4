-- Return a page of the index: the held resources, in the order in which they expire.
-- KEYS: held
-- ARGV: round, length of the page, '1' for the last to expire first
-- -> round, status, TIME us, number of held resources, then each resource and its remaining ms
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = string.format('%.0f', math.floor(now / 1000))
local stale = redis.call('ZRANGEBYSCORE', KEYS[1], 0, '(' .. now_ms, 'LIMIT', 0, 100)
if #stale > 0 then
  redis.call('ZREM', KEYS[1], unpack(stale))
end
local page
if ARGV[3] == '1' then
  page = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', now_ms, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
else
  page = redis.call('ZRANGEBYSCORE', KEYS[1], now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
end
local reply = { tonumber(ARGV[1]), GRANTED, now, redis.call('ZCOUNT', KEYS[1], now_ms, '+inf') }
for index = 1, #page, 2 do
  reply[#reply + 1] = page[index]
  local score = tonumber(page[index + 1])
  reply[#reply + 1] = score == math.huge and -1 or score - tonumber(now_ms)
end
return reply
