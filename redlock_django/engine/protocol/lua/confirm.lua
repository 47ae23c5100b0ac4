-- Raise the fences where every lock still has this token.
-- KEYS: marker, then lock and fence of each resource
-- ARGV: round, value, each fence, expected marker, ready-at us
-- -> round, status, TIME us, then the fences that are now stored (granted); else as extend.lua
-- include trusted.lua
local reply = { round, GRANTED, now }
for index = 1, (#KEYS - 1) / 2 do
  local lock, fence = seen[2 * index], seen[1 + 2 * index]
  if not lock then
    return struct.pack('<i8i8i8i8', round, ABSENT, now, index)
  end
  if lock ~= ARGV[2] then
    local left = redis.call('PTTL', KEYS[2 * index])
    return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
  end
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  reply[3 + index] = math.max(tonumber(fence or 0), tonumber(ARGV[2 + index]))
  if reply[3 + index] > now + 2 * SKEW then
    return struct.pack('<i8i8i8', round, FENCE_AHEAD, now)
  end
end
for index = 1, (#KEYS - 1) / 2 do
  redis.call('SET', KEYS[1 + 2 * index], string.format('%.0f', reply[3 + index]), 'PX', FENCE_TTL)
end
return struct.pack('<' .. string.rep('i8', #reply), unpack(reply))
