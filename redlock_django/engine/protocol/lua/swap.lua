-- Replace the value of every lock, if all of them still have the old token: a lock is handed on, or taken
-- by the client that has its ticket. A tombstone of the old token shows other clients with the same
-- ticket that it was used, and keeps the old token from being set again. To undo a swap is a swap back,
-- which removes the tombstone instead.
-- KEYS: marker, held, the tombs of the old and the new token, then the lock of each resource
-- ARGV: round, value, old token, ttl ms, 1 to set it exactly (0: never shorten a lock), tombstone ms
--       (0: an undo), each resource, expected marker, ready-at us
-- -> round, status, TIME us, then the index at fault (absent, refused)
local old, ttl, tomb = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
if seen[3] or (seen[4] and tomb > 0) then
  return { round, BURIED, now }
end
local refused = not_held(4, old .. ' ', 33)
if refused then
  return refused
end
for index = 1, #KEYS - 4 do
  local left = math.max(ARGV[5] == '1' and ttl or redis.call('PTTL', KEYS[4 + index]), ttl, 1)
  redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', left)
  add_to_index(math.floor(now / 1000), left, ARGV[6 + index], 'CH')
end
if tomb > 0 then
  redis.call('SET', KEYS[3], '1', 'PX', tomb)
else
  redis.call('DEL', KEYS[4])
end
return { round, GRANTED, now }
