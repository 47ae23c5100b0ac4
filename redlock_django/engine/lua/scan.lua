-- One step of a search through all keys: locks of other clients are in no index until they contend.
-- ARGV: round, cursor, pattern, how many to look at
-- -> round, status, TIME us, cursor, then each key found
local clock = redis.call('TIME')
local step = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
return { tonumber(ARGV[1]), 1, clock[1] * 1000000 + clock[2], step[1], unpack(step[2]) }
