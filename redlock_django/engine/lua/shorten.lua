-- Shorten the TTL of every lock that has this token: a release that leaves the lock until its
-- minimum hold is over. Never prolongs a lock, so that it may arrive late, or twice. With a
-- tombstone time, write a tombstone; with a waiter, remove it from the queues: as release.lua does.
-- KEYS: held, tomb, then the lock of each resource, then the queue of each
-- ARGV: round, value, tombstone ms (0: none), waiter ('': none), left ms, each resource
-- -> as release.lua
local round, waiter, left = tonumber(ARGV[1]), ARGV[4], tonumber(ARGV[5])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local expiry = string.format('%.0f', math.floor(now / 1000) + left)
local count = #ARGV - 5
local fault, other = 0, false
for index = 1, count do
  local key = KEYS[2 + index]
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = false -- a key of another type is not a lock
  end
  if waiter ~= '' then
    redis.pcall('ZREM', KEYS[2 + count + index], waiter)
  end
  if lock ~= ARGV[2] then
    if fault == 0 then
      fault, other = index, lock
    end
  elseif redis.call('PTTL', key) > left then
    redis.call('PEXPIRE', key, left)
    redis.pcall('ZADD', KEYS[1], 'XX', expiry, ARGV[5 + index])
    -- The first waiter sleeps until the TTL that it knows. Ask it to try again soon.
    local first = redis.pcall('ZRANGE', KEYS[2 + count + index], 0, 0)[1]
    local channel = first and first:match('^(.*) ')
    if channel then
      redis.pcall('PUBLISH', channel, ' ' .. first)
    end
  end
end
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
end
if fault == 0 then
  return { round, GRANTED, now }
end
if other then
  return { round, REFUSED, now, fault, redis.call('PTTL', KEYS[2 + fault]), 0, other:sub(1, 32) }
end
return { round, ABSENT, now, fault }
