-- Return the values of some lock keys, whichever program set them.
-- KEYS: the locks
-- ARGV: round
-- -> round, status, TIME us, then the value (or nothing) and the PTTL ms of each
local clock = redis.call('TIME')
local reply = { tonumber(ARGV[1]), GRANTED, clock[1] * 1000000 + clock[2] }
local values = redis.call('MGET', unpack(KEYS))
for index, value in ipairs(values) do
  reply[#reply + 1] = value
  reply[#reply + 1] = value and redis.call('PTTL', KEYS[index]) or -2
end
return reply
