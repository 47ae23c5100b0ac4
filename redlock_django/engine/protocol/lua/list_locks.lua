-- List the locks that acquire.lua grants next, as index.lua explains. If the
-- index cannot be changed or has another type, that is an error or CORRUPT, and no lock is set.
for index = 1, count do
  local period, resource = -math.floor(now_ms / max_ttl), ARGV[names + index]
  local added = redis.pcall('ZADD', KEYS[2], 'CH', now_ms + ttl, resource, period, '')
  if type(added) ~= 'number' then
    return added.err:find('^WRONGTYPE') and struct.pack('<i8i8i8', round, CORRUPT, now) or added
  end
  if added > 1 then
    redis.call('PEXPIRE', KEYS[2], 2 * max_ttl) -- lasts until the period after this one ends
  end
end
if now % 16 == 0 then -- seldom, because it costs as much as the grant: entries of expired locks
  local stale = redis.call('ZRANGEBYSCORE', KEYS[2], 0, string.format('(%.0f', now_ms), 'LIMIT', 0, 100)
  if #stale > 0 then
    redis.call('ZREM', KEYS[2], unpack(stale))
  end
end
