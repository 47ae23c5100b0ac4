-- Extend every lock if all of them still have this token. Never re-creates a lock, and never
-- shortens one: an earlier extension may have promised its holder more.
-- KEYS: marker, held, then the lock of each resource
-- ARGV: round, value, ttl ms, each resource, expected marker, ready-at us
-- -> round, status, TIME us, then the index at fault (absent), or index, PTTL ms, 0, -1 and the token in
--    the way (refused)
-- include trusted.lua
-- include ownership.lua
-- include index.lua
local ttl = tonumber(ARGV[3])
local refused = not_held(2, ARGV[2], -1)
if refused then
  return refused
end
for index = 1, #KEYS - 2 do
  if redis.call('PTTL', KEYS[2 + index]) < ttl then
    redis.call('PEXPIRE', KEYS[2 + index], ttl)
    add_to_index(math.floor(now / 1000), ttl, ARGV[3 + index], 'CH')
  end
end
return struct.pack('<i8i8i8', round, GRANTED, now)
