-- Release every lock that has this token: delete it and call its first waiter, or, before its minimum
-- hold is over, only shorten its TTL to what is left of that (never prolong it, so that the release may
-- arrive late, or twice). With a tombstone time, write a tombstone, so that the token cannot be set
-- again. With a waiter, remove it from the queues.
-- KEYS: held, then the lock of each resource, the tomb (if it is to be written), then the queue of each
--       resource (none: leave the queues alone), then the lock of each slot if the resource is a slot of
--       a name that has several
-- ARGV: round, value, how ('': a plain release; else tombstone ms (0: none), left ms (0: the minimum
--       hold is over) and waiter ('': none)), each resource
-- -> round, status, TIME us (0: the clock was not read), then the index at fault (absent), or index, PTTL
--    ms, 0, -1 and the token in the way (refused)
local round, value = tonumber(ARGV[1]), ARGV[2]
local tomb, left, waiter = '0', 0, ''
if ARGV[3] ~= '' then
  tomb, left, waiter = ARGV[3]:match('^(%d+) (%d+) (.*)$')
  left = tonumber(left)
end
local count = #ARGV - 3
local queues = 1 + count + (tomb == '0' and 0 or 1)
local slots = #KEYS - queues - count
local now = 0 -- a plain release that calls no waiter needs no clock
local fault, other = 0, false
for index = 1, count do
  local key, resource, queue = KEYS[1 + index], ARGV[3 + index], KEYS[queues + index]
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = false -- a key of another type is not a lock
  end
  local has_waiters, is_free = queue and redis.call('PTTL', queue) ~= -2, false
  if now == 0 and (has_waiters or left > 0) then
    local clock = redis.call('TIME')
    now = clock[1] * 1000000 + clock[2]
  end
  if has_waiters and waiter ~= '' then
    redis.pcall('ZREM', queue, waiter)
  end
  if lock == value and left > 0 then
    if redis.call('PTTL', key) > left then
      redis.call('PEXPIRE', key, left)
      redis.pcall('ZADD', KEYS[1], 'XX', math.floor(now / 1000) + left, resource)
      -- The first waiter sleeps until the TTL that it knows. Ask it to try again soon.
      local first = has_waiters and redis.pcall('ZRANGE', queue, 0, 0)[1]
      local channel = first and first:match('^(.*) ')
      if channel then
        redis.pcall('PUBLISH', channel, ' ' .. first)
      end
    end
  elseif not lock or lock == value then
    if lock then
      redis.call('DEL', key)
    end
    redis.pcall('ZREM', KEYS[1], resource) -- also if the lock has expired
    is_free = true
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
    fault, other = index, lock
  end
end
if tomb ~= '0' then
  redis.call('SET', KEYS[queues], '1', 'PX', tomb)
end
if fault == 0 then
  return struct.pack('<i8i8i8', round, GRANTED, now)
end
if other then
  left = redis.call('PTTL', KEYS[1 + fault])
  return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, fault, left, 0, -1) .. other:sub(1, 32)
end
return struct.pack('<i8i8i8i8', round, ABSENT, now, fault)
