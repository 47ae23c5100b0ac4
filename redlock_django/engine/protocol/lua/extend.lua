-- Extend every lock if all of them still have this token. Never re-creates a lock, and never
-- shortens one: an earlier extension may have promised its holder more.
-- KEYS: marker, held, then the lock of each resource
-- ARGV: round, value, ttl ms, expected marker, ready-at us
-- -> round, status, TIME us, then the index at fault (absent), or index, PTTL ms, 0, -1 and the token in
--    the way (refused)
-- include trusted.lua
-- include index.lua
local own, length, first = ARGV[2], -1, 3
-- include ownership.lua
local ttl = tonumber(ARGV[3])
for index = 1, #KEYS - 2 do
  if redis.call('PTTL', KEYS[2 + index]) < ttl then
    redis.call('PEXPIRE', KEYS[2 + index], ttl)
    add_to_index(ttl, KEYS[2 + index])
  end
end
return struct.pack('<i8i8i8', round, GRANTED, now)
