-- The index is a sorted set for inspection: KEYS[2] is its key, and a score is the moment (ms) at
-- which the lock of a resource expires. It expires after its last entry, so that nothing is left where
-- no client locks any more.
--
-- The entry '' with a negative score counts the periods of MAX_TTL. Where it is absent or from another
-- period, the index is new or its TTL was last set in another period. So a grant need not ask for that
-- TTL, and the last release does not delete the index, which the next grant would have to make again.

-- Add a lock that lasts `left` ms, whichever program has set it.
local function add_to_index(now_ms, left, resource, flag)
  local added = redis.pcall('ZADD', KEYS[2], flag, now_ms + left, resource)
  if type(added) == 'number' and redis.call('PTTL', KEYS[2]) < left then
    redis.pcall('PEXPIRE', KEYS[2], 2 * left) -- twice: not with every lock
  end
end

