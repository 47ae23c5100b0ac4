-- Included after trusted.lua by the scripts that need all locks of a token: answer if the master does not
-- have them all. The locks are KEYS from `first` on, and the first `length` characters of each (-1: all)
-- must be `own`.
local absent = 0
for index = 1, #KEYS - first + 1 do
  local lock = seen[first - 1 + index]
  if lock and lock:sub(1, length) ~= own then
    local left = redis.call('PTTL', KEYS[first - 1 + index])
    return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
  end
  if not lock and absent == 0 then
    absent = index
  end
end
if absent > 0 then
  return struct.pack('<i8i8i8i8', round, ABSENT, now, absent)
end
