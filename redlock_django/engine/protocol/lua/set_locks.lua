-- Raise the fences and set the locks: the last step of acquire.lua and heal.lua, whose
-- KEYS begin with marker, held, tomb, then lock and fence of each of `count` resources. `seen` has the
-- values of KEYS, `reply` the fence of resource i at 3 + i, ARGV the value at 2 and the name of i at
-- names + i.
for index = 1, count do
  local key = KEYS[2 + 2 * index]
  redis.call('SET', KEYS[3 + 2 * index], reply[3 + index], 'PX', fence_ttl)
  if not seen[2 + 2 * index] and not redis.call('SET', key, ARGV[2], 'NX', 'PX', ttl) then
    -- MGET returns a key of another type as absent. A script has no rollback.
    for other = 1, count do
      if not seen[2 + 2 * other] then
        if other < index then
          redis.call('DEL', KEYS[2 + 2 * other])
        end
        redis.pcall('ZREM', KEYS[2], ARGV[names + other])
      end
    end
    return struct.pack('<i8i8i8', round, CORRUPT, now)
  end
end
