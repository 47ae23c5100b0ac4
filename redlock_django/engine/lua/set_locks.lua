-- Raise the fences and set the locks: the last step of acquire.lua and of heal.lua, whose KEYS
-- begin with marker, held, tomb, then lock and fence of each resource. `seen` has the values of
-- KEYS, `reply` the fence of resource i at 3 + i, ARGV its name at names + i.
-- Returns false if a lock key has another type: then no lock is set, only the fences are raised.
-- `update` changes the index. acquire.lua passes redis.call: it has checked the index, so that an
-- error can only come from the ACL, and must be seen. heal.lua passes redis.pcall: a broken index
-- must not cost a lock.
local function set_locks(update, seen, reply, names, now_ms, ttl, fence_ttl)
  for index = 1, #reply - 3 do
    local key = KEYS[2 + 2 * index]
    redis.call('SET', KEYS[3 + 2 * index], string.format('%.0f', reply[3 + index]), 'PX', fence_ttl)
    if not seen[2 + 2 * index] and not redis.call('SET', key, ARGV[2], 'NX', 'PX', ttl) then
      -- MGET returns a key of another type as absent. A script has no rollback, so undo.
      for before = 1, index - 1 do
        if not seen[2 + 2 * before] then
          redis.call('DEL', KEYS[2 + 2 * before])
          update('ZREM', KEYS[2], ARGV[names + before])
        end
      end
      return false
    end
    add_to_index(update, now_ms, ttl, ARGV[names + index], 'CH')
  end
  return true
end

