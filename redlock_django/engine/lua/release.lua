-- Delete every lock that has this token and call its first waiter. With a tombstone time, write
-- a tombstone, so that the token cannot be set again. With a waiter, remove it from the queues.
-- KEYS: held, tomb, then the lock of each resource, then the queue of each (none: call no waiter)
-- ARGV: round, value, tombstone ms (0: none), waiter ('': none), each resource
-- -> round, status, TIME us (granted: every lock had the token), then the index at fault
local round, waiter = tonumber(ARGV[1]), ARGV[4]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local count = #ARGV - 4
local fault, other = 0, false
for index = 1, count do
  local key = KEYS[2 + index]
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = false -- a key of another type is not a lock
  end
  local free = not lock or lock == ARGV[2]
  if lock == ARGV[2] then
    redis.call('DEL', key)
  elseif fault == 0 then
    fault, other = index, lock
  end
  if free then
    redis.pcall('ZREM', KEYS[1], ARGV[4 + index]) -- also if the lock has expired
  end
  key = KEYS[2 + count + index] -- of the queue
  if key and redis.call('PTTL', key) ~= -2 then -- there are waiters
    if waiter ~= '' then
      redis.pcall('ZREM', key, waiter)
    end
    if free then
      queue_functions()(key, now, '')
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
