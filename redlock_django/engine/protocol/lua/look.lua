-- Return the values of some lock keys, whichever program set them, and how many clients wait for them.
-- KEYS: the locks, then the queue of each
-- ARGV: round
-- -> an array: round, status, TIME us in one string, then the value (or nothing), the PTTL ms and the
--    waiters of each
local clock = redis.call('TIME')
local reply = { struct.pack('<i8i8i8', tonumber(ARGV[1]), GRANTED, clock[1] * 1000000 + clock[2]) }
local locks = #KEYS / 2
local values = redis.call('MGET', unpack(KEYS, 1, locks))
for index, value in ipairs(values) do
  local waiters = redis.pcall('ZCOUNT', KEYS[locks + index], '-inf', '+inf')
  reply[#reply + 1] = value
  reply[#reply + 1] = value and redis.call('PTTL', KEYS[index]) or -2
  reply[#reply + 1] = type(waiters) == 'number' and waiters or 0 -- the ACL may hide the queue
end
return reply
