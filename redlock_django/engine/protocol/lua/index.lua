-- The index is a sorted set for inspection: KEYS[2] is its key, and a score is the moment (ms) at
-- which the lock of a resource expires. It expires after its last entry, so that nothing is left where
-- no client locks any more.
--
-- The entry '' with a negative score counts the periods of MAX_TTL. Where it is absent or from another
-- period, the index is new or its TTL was last set in another period. So no script need ask for that
-- TTL, and the last release does not delete the index, which the next grant would have to make again.

-- Add a lock, whichever program has set it, that lasts `left` ms. Returns the error if that is not possible.
local function add_to_index(left, lock)
  local now_ms = math.floor(now / 1000)
  local period = -math.floor(now_ms / MAX_TTL)
  local added = redis.pcall('ZADD', KEYS[2], 'CH', now_ms + left, lock:sub(NAME), period, '')
  if type(added) == 'number' and added > 1 then
    redis.call('PEXPIRE', KEYS[2], 2 * MAX_TTL) -- lasts until the period after this one ends
  end
  if type(added) == 'number' and now % 64 == 0 then -- seldom, because it costs much: entries of expired locks
    local stale = redis.call('ZRANGEBYSCORE', KEYS[2], 0, string.format('(%.0f', now_ms), 'LIMIT', 0, 100)
    if #stale > 0 then
      redis.call('ZREM', KEYS[2], unpack(stale))
    end
  end
  return added
end
