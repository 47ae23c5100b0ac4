-- Set the locks of a client that hands a lock on, or takes it with its ticket: as acquire.lua does, on the
-- condition that every lock has the expected token instead of that it is absent. The fences stay as they are.
-- A tombstone of the expected token keeps it from being set again. It has the new token, by which other
-- clients with the same ticket learn which of them has used it, and what restore.lua needs: when the locks
-- would have ended (ms of this clock), and their value.
-- KEYS: marker, held, the tombs of the token and of the expected one, then the lock of each resource
-- ARGV: round, value, expected token, ttl ms, expected marker, ready-at us
-- -> round, status, TIME us, then the ms that the locks had left (granted), the token that has replaced the
--    expected one (used); else as extend.lua
-- include trusted.lua
-- include index.lua
if seen[3] then
  return struct.pack('<i8i8i8', round, BURIED, now)
end
if seen[4] then
  return struct.pack('<i8i8i8', round, USED, now) .. seen[4]:sub(1, 32)
end
local own, length, first = ARGV[3] .. ' ', 33, 5
-- include ownership.lua
local now_ms, rest = math.floor(now / 1000), 1
for index = 5, #KEYS do
  rest = math.max(rest, redis.call('PTTL', KEYS[index]))
end
local ends = string.format(' %.0f ', now_ms + rest)
redis.call('SET', KEYS[4], ARGV[2]:sub(1, 32) .. ends .. seen[5], 'PX', FENCE_TTL)
for index = 1, #KEYS - 4 do
  redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', ARGV[4])
  add_to_index(tonumber(ARGV[4]), KEYS[4 + index])
end
return struct.pack('<i8i8i8i8', round, GRANTED, now, rest)
