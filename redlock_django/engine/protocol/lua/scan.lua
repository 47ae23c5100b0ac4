-- Search all keys: one step of SCAN. Locks of other programs are in no index until a client
-- contends for them.
-- ARGV: round, cursor, pattern, how many keys to examine
-- -> round, status, TIME us, cursor, then each key found
local clock = redis.call('TIME')
local step = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
return { tonumber(ARGV[1]), GRANTED, clock[1] * 1000000 + clock[2], step[1], unpack(step[2]) }
