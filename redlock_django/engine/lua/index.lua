-- Add a resource, whose lock lasts `left` ms, to the index: a sorted set for inspection, of which
-- KEYS[2] is the key and the score is the moment (ms) at which the lock expires. The index expires
-- after its last entry, so that nothing is left where no client locks any more. `update` changes it:
-- redis.pcall where a broken index must not cost a lock.
local function add_to_index(update, now_ms, left, resource, flag)
  local added = update('ZADD', KEYS[2], flag, string.format('%.0f', now_ms + left), resource)
  if type(added) == 'number' and redis.call('PTTL', KEYS[2]) < left then
    update('PEXPIRE', KEYS[2], string.format('%.0f', 2 * left)) -- twice: not with every lock
  end
end

