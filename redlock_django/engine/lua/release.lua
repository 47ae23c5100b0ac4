-- Free every lock that is ours; with a tombstone, keep the token from coming back.
-- KEYS: held, tomb, then the lock of each resource
-- ARGV: round, value, tombstone ms (0: none), each resource
-- -> round, status, TIME us (granted: all were ours), then the place at fault
local round = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local fault, other = 0, false
for place = 1, #KEYS - 2 do
  local key = KEYS[2 + place]
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = false -- a key of another type is not our lock
  end
  if lock == ARGV[2] then
    redis.call('DEL', key)
    redis.pcall('ZREM', KEYS[1], ARGV[3 + place])
  elseif fault == 0 then
    fault, other = place, lock
  end
end
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
end
if fault == 0 then
  return { round, 1, now }
end
if other then
  return { round, 0, now, fault, redis.call('PTTL', KEYS[2 + fault]), 0, other:sub(1, 32) }
end
return { round, -5, now, fault }
