-- Replace the value of every lock, if all of them still have the old token: a lock is handed on, or taken
-- by the client that has its ticket. A tombstone of the old token keeps that from being set again. It has
-- the new token, by which other clients with the same ticket learn who has used it, and what restore.lua
-- needs: when the locks would have ended (ms of this clock), and their value.
-- KEYS: marker, held, the tombs of the old and the new token, then the lock of each resource
-- ARGV: round, value, old token, ttl ms, 1 to set it exactly (0: never shorten a lock), tombstone ms, each
--       resource, expected marker, ready-at us
-- -> round, status, TIME us, then the ms that the locks had left (granted), the token that replaced the
--    old one ('': the new token was released; buried), or the index at fault (absent, refused)
-- include trusted.lua
-- include ownership.lua
-- include index.lua
local old, ttl = ARGV[3], tonumber(ARGV[4])
if seen[3] or seen[4] then
  return { round, BURIED, now, seen[3] and seen[3]:sub(1, 32) or '' }
end
local refused = not_held(4, old .. ' ', 33)
if refused then
  return refused
end
local now_ms, rest = math.floor(now / 1000), 1
for index = 5, #KEYS do
  rest = math.max(rest, redis.call('PTTL', KEYS[index]))
end
local left = math.max(ARGV[5] == '1' and ttl or rest, ttl, 1)
local ends = string.format(' %.0f ', now_ms + rest)
redis.call('SET', KEYS[3], ARGV[2]:sub(1, 32) .. ends .. seen[5], 'PX', ARGV[6])
for index = 1, #KEYS - 4 do
  redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', left)
  add_to_index(now_ms, left, ARGV[6 + index], 'CH')
end
return { round, GRANTED, now, rest }
