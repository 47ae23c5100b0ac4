-- Set every lock or none; or, if the resource is one slot of a name that has several, set its lock if it is
-- free and no waiter in front needs it.
-- KEYS: marker, held, tomb, then lock and fence of each resource, then the queue of each, then the lock of
--       each slot of that name (none: it has one)
-- ARGV: round, value, six doubles in one string (proposal us, ttl ms, skew us, fence ttl ms, max ttl
--       ms, how many slots: to send and convert each by itself costs a tenth of a grant), each
--       resource, ticket us and waiter (left out: does not wait), expected marker, ready-at us
-- -> round, status, TIME us, then the fences (granted), or index, PTTL ms (of slots: until the first is
--    free), fence, the number of waiters in front, the token or waiter in the way, and of slots a
--    character for each: '0' if this client may take it, else '1' (refused, reserved)
local round, value = tonumber(ARGV[1]), ARGV[2]
local proposed, ttl, skew, fence_ttl, max_ttl, slots = struct.unpack('<dddddd', ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local count = (#KEYS - 3 - slots) / 3
local queues = 3 + 2 * count
local seen = redis.call('MGET', unpack(KEYS, 1, slots > 0 and #KEYS or queues))
if seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV]) then
  return struct.pack('<i8i8i8', round, NOT_READY, now)
end
if seen[3] then
  return struct.pack('<i8i8i8', round, BURIED, now)
end

local proposal = math.min(math.max(proposed, now - skew), now + skew)
local ticket, waiter = nil, ''
if #ARGV > 5 + count then
  ticket, waiter = ARGV[4 + count]:match('^(%d+) (.*)$')
  -- An error of the client's clock must not change its position in the queue either.
  ticket = proposal - (proposed - tonumber(ticket))
end
local reply = { round, GRANTED, now }
local free -- the slots that are free
local call_first, stand
for index = 1, count do
  local lock, fence = seen[2 + 2 * index], seen[3 + 2 * index]
  -- tonumber also accepts '0x10', ' 12 ' and 'nan'; above 2^53 different numbers become equal.
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  local stored, queue = tonumber(fence or 0), KEYS[queues + index]
  local is_held, is_full = lock and lock ~= value, false
  local status, left, other, taken
  if slots > 0 and lock ~= value then
    -- include slots.lua
  elseif is_held then
    left = redis.call('PTTL', KEYS[2 + 2 * index])
    -- A clock that went back makes locks last too long. Only locks of this package (a token, a
    -- space, then JSON) are shortened.
    local is_known = lock:find('^%x+ {') == 1 and lock:find(' ', 1, true) == 33
    if left > max_ttl and is_known then
      redis.call('PEXPIRE', KEYS[2 + 2 * index], max_ttl)
      left = max_ttl
    end
    -- include index.lua
    -- The index shows locks of other programs too, for MAX_TTL from the last time a client contended
    -- for them if they have no TTL. Those of this package are in the index already.
    local shown = left < 0 and max_ttl or left
    add_to_index(now_ms, shown, ARGV[3 + index], is_known and 'NX' or 'CH')
    is_full = true
  end
  if is_held then
    status, other = REFUSED, lock:sub(1, 32)
  end
  local may_be_reserved = not (lock == value or is_full)
  local has_waiters = may_be_reserved and redis.call('PTTL', queue) ~= -2
  local ahead = -1
  if has_waiters or other and waiter ~= '' then
    -- include queue.lua
    if has_waiters then
      local first, turn = call_first(queue, now, waiter, ticket, free and #free, free)
      if first then
        status, left, other = RESERVED, math.ceil(turn / 1000), first
        taken = free and string.rep('1', slots)
      end
    end
    if other and waiter ~= '' then
      ahead = stand(queue, waiter, ticket, left < 0 and max_ttl or left)
      for another = 1, count do
        -- A client that cannot set every lock waits in one queue only, so that the next waiter of the
        -- others gets its turn.
        local key = KEYS[queues + another]
        if another ~= index and redis.pcall('ZREM', key, waiter) == 1 and not seen[2 + 2 * another] then
          call_first(key, now, '')
        end
      end
    end
  end
  if other then
    local numbers = struct.pack('<i8i8i8i8i8i8i8', round, status, now, index, left, stored, ahead)
    return numbers .. other .. (taken or '')
  end
  if not (lock and fence) then
    stored = math.max(stored + 1, proposal)
  end
  if stored > now + 2 * skew then
    return struct.pack('<i8i8i8', round, FENCE_AHEAD, now)
  end
  reply[3 + index] = stored
end

local names = 3
-- include list_locks.lua
-- include set_locks.lua
if waiter ~= '' then
  for index = 1, count do
    redis.pcall('ZREM', KEYS[queues + index], waiter)
  end
  if free and call_first then
    -- Slots that expired, or whose minimum hold has ended, have called no waiter.
    local others = {}
    for _, slot in ipairs(free) do
      if KEYS[7 + slot] ~= KEYS[4] then
        others[#others + 1] = slot
      end
    end
    if #others > 0 then
      call_first(KEYS[6], now, '', nil, #others, others)
    end
  end
end
return struct.pack('<' .. string.rep('i8', #reply), unpack(reply))
