-- Undo take.lua: give every lock that has this token the value and the end that it had before, and forget
-- that the expected token was replaced. This token is buried, in case the command itself arrives later.
-- KEYS: the tomb of the expected token, held, the tomb of this one, then the lock of each resource
-- ARGV: round, value
-- -> as extend.lua
local round, value = tonumber(ARGV[1]), ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- include index.lua
local used = redis.call('GET', KEYS[1])
local by, ends, before = (used or ''):match('^(%x+) (%d+) (.*)$')
if by ~= value:sub(1, 32) then
  before = nil -- another client has replaced the expected token, or none
end
local reply = struct.pack('<i8i8i8', round, GRANTED, now)
for index = 1, #KEYS - 3 do
  local key = KEYS[3 + index]
  local lock = redis.pcall('GET', key)
  lock = type(lock) ~= 'table' and lock -- a key of another type is not a lock
  if lock == value and before then
    local left = math.max(tonumber(ends) - math.floor(now / 1000), 1)
    redis.call('SET', key, before, 'PX', left)
    add_to_index(left, key)
  elseif lock then
    local left = redis.call('PTTL', key)
    reply = struct.pack('<i8i8i8i8i8i8i8', round, REFUSED, now, index, left, 0, -1) .. lock:sub(1, 32)
  else
    reply = struct.pack('<i8i8i8i8', round, ABSENT, now, index)
  end
end
if before then
  redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[3], '1', 'PX', MAX_TTL)
return reply
