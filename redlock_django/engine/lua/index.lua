-- Add a resource, whose lock lasts `left` ms, to the index: a sorted set for inspection, of which
-- KEYS[2] is the key and the score is the moment (ms) at which the lock expires. The index expires
-- after its last entry, so that nothing is left where no client locks any more.
-- Returns nothing, or the error if the index cannot be changed.
local function add_to_index(now_ms, left, resource, flag)
  local added = redis.pcall('ZADD', KEYS[2], flag, now_ms + left, resource)
  if type(added) ~= 'number' then
    return added
  end
  if redis.call('PTTL', KEYS[2]) < left then
    redis.pcall('PEXPIRE', KEYS[2], 2 * left) -- twice: not with every lock
  end
end

