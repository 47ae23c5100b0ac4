-- Refuse a resource to a client of acquire.lua, unless the client may take it: a lock is held, or clients wait.
-- A lock is looked at as a name with one slot is.
local status, other, left, taken, ahead = REFUSED, lock and lock:sub(1, 32), -1, '', -1
local ours = 2 + 2 * index
local first, last = ours, ours
if slots > 0 then
  first, last = 7, 6 + slots
end
free = {}
for at = first, last do
  local holder = seen[at]
  taken = taken .. (holder and '1' or '0')
  if holder then
    local lasts = redis.call('PTTL', KEYS[at])
    -- A clock that went back makes locks last too long. Only locks of this package (a token, a
    -- space, then JSON) are shortened.
    local is_known = holder:find('^%x+ {') == 1 and holder:find(' ', 1, true) == 33
    if lasts > MAX_TTL and is_known then
      redis.call('PEXPIRE', KEYS[at], MAX_TTL)
      lasts = MAX_TTL
    end
    if not is_known and at == ours then
      -- The index shows locks of other programs too, for MAX_TTL from the last time a client contended
      -- for them if they have no TTL. Removed before, because such a lock mostly ends when it did at the
      -- last time, and an entry that does not change does not prolong the index.
      redis.pcall('ZREM', KEYS[2], KEYS[at]:sub(NAME))
      add_to_index(lasts < 0 and MAX_TTL or lasts, KEYS[at])
    end
    left = lasts >= 0 and (left < 0 or lasts < left) and lasts or left
  else
    free[#free + 1] = at - first
  end
end
if has_waiters or waiter ~= '' then
  local stand
  -- include queue.lua
  if has_waiters and #free > 0 then
    local front, turn = call_first(queue, now, waiter, ticket, #free, slots > 0 and free)
    if front then
      status, other, left, taken = RESERVED, front, math.ceil(turn / 1000), string.rep('1', slots)
    end
  end
  if other and waiter ~= '' then
    ahead = stand(queue, waiter, ticket, left < 0 and MAX_TTL or left)
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
  return numbers .. other .. taken:sub(1, slots)
end
