-- Set every lock or none; or, if the resource is one slot of a name that has several, set its lock if it is
-- free and no waiter in front needs it.
-- KEYS: marker, held, tomb, then lock and fence of each resource, then the queue of each, then the lock of
--       each slot of that name (none: it has one)
-- ARGV: round, value, three doubles in one string (proposal us, ttl ms, how many slots: to send and convert
--       each by itself costs more), ticket us and waiter (left out: does not wait), expected marker,
--       ready-at us
-- -> round, status, TIME us, then the fences (granted), or index, PTTL ms (of slots: until the first is
--    free), fence, the number of waiters in front, the token or waiter in the way, and of slots a
--    character for each: '0' if this client may take it, else '1' (refused, reserved)
-- include trusted.lua
-- include index.lua
local value = ARGV[2]
local proposed, ttl, slots = struct.unpack('<ddd', ARGV[3])
if seen[3] then
  return struct.pack('<i8i8i8', round, BURIED, now)
end
local proposal = math.min(math.max(proposed, now - SKEW), now + SKEW)

-- Nearly every acquire: of one lock, which is free and has no queue. What is below does the same for any
-- acquire, and refuses.
if #KEYS == 6 and not seen[4] and redis.call('PTTL', KEYS[6]) == -2 then
  local fence = seen[5] or '0'
  local stored = fence:find('^%d+$') and #fence <= 16 and math.max(fence + 1, proposal)
  if stored and stored <= now + 2 * SKEW and type(add_to_index(ttl, KEYS[4])) == 'number' then
    redis.call('SET', KEYS[5], stored, 'PX', FENCE_TTL)
    if redis.call('SET', KEYS[4], value, 'NX', 'PX', ttl) then
      return struct.pack('<i8i8i8i8', round, GRANTED, now, stored)
    end
  end
end

local count = (#KEYS - 3 - slots) / 3
local queues = 3 + 2 * count
local ticket, waiter = nil, ''
if #ARGV > 5 then
  ticket, waiter = ARGV[4]:match('^(%d+) (.*)$')
  -- An error of the client's clock must not change its position in the queue either.
  ticket = proposal - (proposed - tonumber(ticket))
end
local fences, free, call_first = {}, nil, nil -- free: the slots that are, if refuse.lua has looked
for index = 1, count do
  local lock, fence, queue = seen[2 + 2 * index], seen[3 + 2 * index], KEYS[queues + index]
  -- tonumber also accepts '0x10', ' 12 ' and 'nan'; above 2^53 different numbers become equal.
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  local stored = tonumber(fence or 0)
  if lock ~= value then -- otherwise the command has arrived twice
    local has_waiters = (slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2
    if lock or has_waiters then
      -- include refuse.lua
    end
  end
  if not (lock and fence) then
    stored = math.max(stored + 1, proposal)
  end
  if stored > now + 2 * SKEW then
    return struct.pack('<i8i8i8', round, FENCE_AHEAD, now)
  end
  fences[index] = stored
end

-- If the index cannot be changed or has another type, that is an error or CORRUPT, and no lock is set.
for index = 1, count do
  local added = add_to_index(ttl, KEYS[2 + 2 * index])
  if type(added) ~= 'number' then
    return added.err:find('^WRONGTYPE') and struct.pack('<i8i8i8', round, CORRUPT, now) or added
  end
end
-- include set_locks.lua
if waiter ~= '' then
  for index = 1, count do
    redis.pcall('ZREM', KEYS[queues + index], waiter)
  end
  if slots > 0 and call_first then
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
return reply
