-- Set a held lock on a master that had forgotten it.
-- KEYS: marker, held, tomb, then lock and fence of each resource
-- ARGV: round, value, ttl ms, skew us, fence ttl ms, each resource, each fence,
--       expected marker, ready-at us
-- -> round, status, TIME us, then the fences (granted); else as extend.lua
-- include trusted.lua
-- include index.lua
local value, ttl = ARGV[2], tonumber(ARGV[3])
if seen[3] then
  return struct.pack('<i8i8i8', round, BURIED, now)
end
local count = (#KEYS - 3) / 2
local reply = { round, GRANTED, now }
for index = 1, count do
  local lock, fence = seen[2 + 2 * index], seen[3 + 2 * index]
  if lock and lock ~= value then
    local left = redis.call('PTTL', KEYS[2 + 2 * index])
    return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
  end
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  reply[3 + index] = math.max(tonumber(fence or 0), tonumber(ARGV[5 + count + index]))
  if reply[3 + index] > now + 2 * tonumber(ARGV[4]) then
    return struct.pack('<i8i8i8', round, FENCE_AHEAD, now)
  end
end
for index = 1, count do -- a broken index must not cost a lock
  add_to_index(math.floor(now / 1000), ttl, ARGV[5 + index], 'CH')
end
local names, fence_ttl = 5, ARGV[5]
-- include set_locks.lua
return struct.pack('<' .. string.rep('i8', #reply), unpack(reply))
