-- Set a held lock on a master that had forgotten it.
-- KEYS: marker, held, tomb, then lock and fence of each resource
-- ARGV: round, value, ttl ms, each fence, expected marker, ready-at us
-- -> round, status, TIME us, then the fences (granted); else as extend.lua
-- include trusted.lua
-- include index.lua
local value, ttl = ARGV[2], tonumber(ARGV[3])
if seen[3] then
  return struct.pack('<i8i8i8', round, BURIED, now)
end
local count = (#KEYS - 3) / 2
local fences = {}
for index = 1, count do
  local lock, fence = seen[2 + 2 * index], seen[3 + 2 * index]
  if lock and lock ~= value then
    local left = redis.call('PTTL', KEYS[2 + 2 * index])
    return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
  end
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  fences[index] = math.max(tonumber(fence or 0), tonumber(ARGV[3 + index]))
  if fences[index] > now + 2 * SKEW then
    return struct.pack('<i8i8i8', round, FENCE_AHEAD, now)
  end
end
for index = 1, count do
  add_to_index(ttl, KEYS[2 + 2 * index])
end
-- include set_locks.lua
return reply
