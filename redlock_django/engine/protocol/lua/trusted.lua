-- The beginning of acquire.lua, confirm.lua, extend.lua, heal.lua and take.lua: read the clock and every
-- key, and answer NOT_READY unless this master has the marker that the client expects and its ready-at is
-- past.
-- Defines round, now (us) and seen (the values of KEYS).
local round = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.call('MGET', unpack(KEYS))
if seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV]) then
  return struct.pack('<i8i8i8', round, NOT_READY, now)
end

