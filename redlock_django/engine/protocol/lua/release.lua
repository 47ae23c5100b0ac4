-- Release every lock that has this token: delete it and call its first waiter, or, before its minimum
-- hold is over, only shorten its TTL to what is left of that (never prolong it, so that the release may
-- arrive late, or twice). If asked for, write a tombstone, so that the token cannot be set
-- again. With a waiter, remove it from the queues.
-- KEYS: held, then the lock of each resource, the tomb (if it is to be written), then the queue of each
--       resource (none: leave the queues alone), then the lock of each slot if the resource is a slot of
--       a name that has several
-- ARGV: round, value, and, except to a plain release of one lock, in one string how many resources, 1 if a
--       tombstone is to be written (else 0), left ms (0: the minimum hold is over) and waiter ('': none)
-- -> round, status, TIME us (0: the clock was not read), then the index at fault (absent), or index, PTTL
--    ms, 0, -1 and the token in the way (refused)
local round, value = tonumber(ARGV[1]), ARGV[2]

-- Nearly every release: of one lock, which has no queue. What is below does the same for any release.
if #KEYS == 3 and not ARGV[3] and redis.call('PTTL', KEYS[3]) == -2 and redis.pcall('GET', KEYS[2]) == value then
  redis.call('DEL', KEYS[2])
  redis.pcall('ZREM', KEYS[1], KEYS[2]:sub(NAME))
  return struct.pack('<i8i8i8', round, GRANTED, 0)
end

local count, bury, left, waiter = 1, 0, 0, ''
if ARGV[3] then
  count, bury, left, waiter = ARGV[3]:match('^(%d+) (%d) (%d+) (.*)$')
  count, bury, left = tonumber(count), tonumber(bury), tonumber(left)
end
local queues = 1 + count + bury
local slots = #KEYS - queues - count
local seen = redis.call('MGET', unpack(KEYS, 2, 1 + count)) -- a key of another type is not a lock
local now = 0 -- a plain release that calls no waiter needs no clock
local fault = 0
for index = 1, count do
  local key, lock, queue = KEYS[1 + index], seen[index], KEYS[queues + index]
  local has_waiters = queue and redis.call('PTTL', queue) ~= -2
  if now == 0 and (has_waiters or left > 0) then
    local clock = redis.call('TIME')
    now = clock[1] * 1000000 + clock[2]
  end
  if has_waiters and waiter ~= '' then
    redis.pcall('ZREM', queue, waiter)
  end
  local is_free = not lock or lock == value and left == 0
  if is_free then
    if lock then
      redis.call('DEL', key)
    end
    redis.pcall('ZREM', KEYS[1], key:sub(NAME)) -- also if the lock has expired
  elseif lock == value and redis.call('PTTL', key) > left then
    redis.call('PEXPIRE', key, left)
    redis.pcall('ZADD', KEYS[1], 'XX', math.floor(now / 1000) + left, key:sub(NAME))
    -- The first waiter sleeps until the TTL that it knows. Ask it to try again soon.
    local first = has_waiters and redis.pcall('ZRANGE', queue, 0, 0)[1]
    local channel = first and first:match('^(.*) ')
    if channel then
      redis.pcall('PUBLISH', channel, ' ' .. first)
    end
  end
  if has_waiters and (is_free or slots > 0) then
    local call_first, stand
    -- include queue.lua
    if slots <= 0 then
      call_first(queue, now, '')
    else
      -- As many waiters have a turn as slots are free. The slot of this release is named last: earlier
      -- calls have named the others.
      local free = {}
      for slot, other in ipairs(redis.call('MGET', unpack(KEYS, #KEYS - slots + 1))) do
        local is_ours = KEYS[#KEYS - slots + slot] == key
        if not other then
          table.insert(free, is_ours and #free + 1 or 1, slot - 1)
        end
      end
      if #free > 0 then
        call_first(queue, now, '', nil, #free, free)
      end
    end
  end
  if lock ~= value and fault == 0 then
    fault = index
  end
end
if bury == 1 then
  redis.call('SET', KEYS[queues], '1', 'PX', MAX_TTL)
end
if fault == 0 then
  return struct.pack('<i8i8i8', round, GRANTED, now)
end
if seen[fault] then
  left = redis.call('PTTL', KEYS[1 + fault])
  return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, fault, left, 0, -1) .. seen[fault]:sub(1, 32)
end
return struct.pack('<i8i8i8i8', round, ABSENT, now, fault)
