-- Included after trusted.lua by the scripts that need all locks of a token: return the reply of a master
-- that does not have them all, and nil if it does. The locks follow `before` other keys, and the first
-- `length` characters of each (-1: all) must be `own`.
local function not_held(before, own, length)
  local absent = 0
  for index = 1, #KEYS - before do
    local lock = seen[before + index]
    if lock and lock:sub(1, length) ~= own then
      local left = redis.call('PTTL', KEYS[before + index])
      return struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
    end
    if not lock and absent == 0 then
      absent = index
    end
  end
  if absent > 0 then
    return struct.pack('<i8i8i8i8', round, ABSENT, now, absent)
  end
end

