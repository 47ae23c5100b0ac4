-- Store the fences and set the locks: the last step of acquire.lua and heal.lua, whose
-- KEYS begin with marker, held, tomb, then lock and fence of each of `count` resources. `seen` has the
-- values of KEYS, `fences` the fence of each resource.
-- Defines `reply`, that of a grant.
local reply = struct.pack('<i8i8i8', round, GRANTED, now)
for index = 1, count do
  local key = KEYS[2 + 2 * index]
  redis.call('SET', KEYS[3 + 2 * index], fences[index], 'PX', FENCE_TTL)
  if not seen[2 + 2 * index] and not redis.call('SET', key, value, 'NX', 'PX', ttl) then
    -- MGET returns a key of another type as absent. A script has no rollback.
    for other = 1, count do
      if not seen[2 + 2 * other] then
        if other < index then
          redis.call('DEL', KEYS[2 + 2 * other])
        end
        redis.pcall('ZREM', KEYS[2], KEYS[2 + 2 * other]:sub(NAME))
      end
    end
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
  reply = reply .. struct.pack('<i8', fences[index])
end
