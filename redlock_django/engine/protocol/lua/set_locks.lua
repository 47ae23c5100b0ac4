-- Raise the fences and set the locks: the last step of acquire.lua and of heal.lua, whose KEYS
-- begin with marker, held, tomb, then lock and fence of each resource. `seen` has the values of
-- KEYS, `reply` the fence of resource i at 3 + i, ARGV the value at 2 and the name of i at names + i.
-- Returns the reply. If the index cannot be changed or a lock key has another type, that is an error
-- or CORRUPT, and no lock is set. heal.lua does without the index (`max_ttl` is nil): a broken index
-- must not cost a lock.
local function set_locks(max_ttl, seen, reply, names, now_ms, ttl, fence_ttl)
  for index = 1, #reply - 3 do
    local key, resource = KEYS[2 + 2 * index], ARGV[names + index]
    -- First: a script has no rollback.
    local fault
    if max_ttl then
      fault = add_grant(now_ms, ttl, resource, max_ttl)
    else
      add_to_index(now_ms, ttl, resource, 'CH')
    end
    if fault then
      return fault.err:find('^WRONGTYPE') and { reply[1], CORRUPT, reply[3] } or fault
    end
    redis.call('SET', KEYS[3 + 2 * index], reply[3 + index], 'PX', fence_ttl)
    if not seen[2 + 2 * index] and not redis.call('SET', key, ARGV[2], 'NX', 'PX', ttl) then
      -- MGET returns a key of another type as absent.
      redis.pcall('ZREM', KEYS[2], resource)
      for before = 1, index - 1 do
        if not seen[2 + 2 * before] then
          redis.call('DEL', KEYS[2 + 2 * before])
          redis.pcall('ZREM', KEYS[2], ARGV[names + before])
        end
      end
      return { reply[1], CORRUPT, reply[3] }
    end
  end
  return reply
end

