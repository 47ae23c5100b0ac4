-- Raise the fences where every lock still has this token.
-- KEYS: marker, then lock and fence of each resource
-- ARGV: round, value, skew us, fence ttl ms, each fence, expected marker, ready-at us
-- -> round, status, TIME us, then the fences that are now stored
-- include trusted.lua
local reply = { round, GRANTED, now }
for index = 1, (#KEYS - 1) / 2 do
  local lock, fence = seen[2 * index], seen[1 + 2 * index]
  if not lock then
    return { round, ABSENT, now, index }
  end
  if lock ~= ARGV[2] then
    return { round, REFUSED, now, index, redis.call('PTTL', KEYS[2 * index]), 0, lock:sub(1, 32) }
  end
  if fence and not (fence:find('^%d+$') and #fence <= 16) then
    return { round, CORRUPT, now }
  end
  reply[3 + index] = math.max(tonumber(fence or 0), tonumber(ARGV[4 + index]))
  if reply[3 + index] > now + 2 * tonumber(ARGV[3]) then
    return { round, FENCE_AHEAD, now }
  end
end
for index = 1, (#KEYS - 1) / 2 do
  redis.call('SET', KEYS[1 + 2 * index], string.format('%.0f', reply[3 + index]), 'PX', ARGV[4])
end
return reply
