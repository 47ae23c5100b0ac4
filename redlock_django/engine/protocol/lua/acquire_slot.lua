-- Set the lock of one slot of a name that has several, if it is free and no waiter in front needs it.
-- KEYS: marker, held, tomb, lock and fence of the wanted slot, queue of the name, then the lock of each
--       slot
-- ARGV: round, value, five doubles in one string (as for acquire.lua), the resource of the wanted slot,
--       ticket us and waiter (left out: does not wait), expected marker, ready-at us
-- -> round, status, TIME us and the fence, as integers of eight bytes in one string (granted); or 1, PTTL
--    ms until the first slot is free, fence, the token or waiter in the way, the number of waiters in
--    front, and a character for each slot: '0' if this client may take it, else '1' (refused, reserved).
--    If all slots are taken, a client that does not wait is refused as by acquire.lua, in one string
local round, value = tonumber(ARGV[1]), ARGV[2]
local proposed, ttl, skew, fence_ttl, max_ttl = struct.unpack('<ddddd', ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now / 1000)
local queue, slots = KEYS[6], #KEYS - 6
local seen = redis.call('MGET', unpack(KEYS))
if seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV]) then
  return { round, NOT_READY, now }
end
if seen[3] then
  return { round, BURIED, now }
end

local proposal = math.min(math.max(proposed, now - skew), now + skew)
local ticket, waiter = nil, ''
if #ARGV > 6 then
  ticket, waiter = ARGV[5]:match('^(%d+) (.*)$')
  -- An error of the client's clock must not change its position in the queue either.
  ticket = proposal - (proposed - tonumber(ticket))
end
-- include queue.lua
local lock, fence = seen[4], seen[5]
if fence and not (fence:find('^%d+$') and #fence <= 16) then
  return { round, CORRUPT, now }
end
local stored, free = tonumber(fence or 0), {}
if lock ~= value then
  local taken, soonest = {}, -1
  for slot = 1, slots do
    local other = seen[6 + slot]
    taken[slot] = other and '1' or '0'
    if other then
      local left = redis.call('PTTL', KEYS[6 + slot])
      -- A clock that went back makes locks last too long: see acquire.lua.
      if left > max_ttl and other:find('^%x+ {') == 1 and other:find(' ', 1, true) == 33 then
        redis.call('PEXPIRE', KEYS[6 + slot], max_ttl)
        left = max_ttl
      end
      soonest = left >= 0 and (soonest < 0 or left < soonest) and left or soonest
    else
      free[#free + 1] = slot - 1
    end
  end
  local status, left, other = REFUSED, soonest, lock and lock:sub(1, 32)
  if #free > 0 and redis.call('PTTL', queue) ~= -2 then -- there are waiters
    local first, turn = call_first(queue, now, waiter, ticket, #free, free)
    if first then
      status, left, other = RESERVED, math.ceil(turn / 1000), first
      taken = { string.rep('1', slots) }
    end
  end
  if #free == 0 and waiter == '' and #other == 32 then
    return struct.pack('<i8i8i8i8i8c32', round, status, now, left, stored, other)
  end
  if other then
    local ahead = stand(queue, waiter, ticket, left < 0 and max_ttl or left)
    return { round, status, now, 1, left, stored, other, ahead, table.concat(taken) }
  end
end
if not (lock and fence) then
  stored = math.max(stored + 1, proposal)
end
if stored > now + 2 * skew then
  return { round, FENCE_AHEAD, now }
end

local count, names, reply = 1, 3, { round, GRANTED, now, stored }
-- include list_locks.lua
-- include set_locks.lua
if waiter ~= '' then
  redis.pcall('ZREM', queue, waiter)
  -- Slots that expired, or whose minimum hold has ended, have called no waiter.
  local others = {}
  for _, slot in ipairs(free) do
    if KEYS[7 + slot] ~= KEYS[4] then
      others[#others + 1] = slot
    end
  end
  if #others > 0 then
    call_first(queue, now, '', nil, #others, others)
  end
end
return struct.pack('<i8i8i8i8', round, GRANTED, now, stored)
