-- Return whether this master is trusted, and store the answer in its marker for later clients.
-- A master without a marker gets one only if the client knows that no other deployment uses the
-- masters: in the modes 'mark', 'trust' and 'reconfigure'.
-- A master with another run_id than its marker has restarted and may have forgotten locks:
-- its votes count again only after every lock that it may have forgotten has expired.
-- KEYS: marker
-- ARGV: round, run_id, fingerprint, delay us, mode ('join', 'mark', 'distrust', 'trust',
--       'reconfigure')
-- -> round, status (one of those in statuses.py), TIME us, then the marker
local run, print, delay, mode = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local marker = redis.call('GET', KEYS[1]) or ''
local was, at, other = marker:match('^(%x+) (%d+) (%S+)$')
local status, writes = MARKED, true
if not was then
  status, marker = FRESH, ''
  if mode == 'join' or mode == 'distrust' then
    status, writes = UNMARKED, false
  end
elseif other ~= print and mode ~= 'reconfigure' then
  status, writes = MISMATCH, false
elseif was ~= run then
  status = RESTARTED
elseif mode == 'distrust' then
  status = STEPPED
elseif (mode == 'join' or mode == 'mark') and tonumber(at) <= now + delay then
  -- A ready-at further away than the delay was written by a clock that has gone back since.
  status, writes = KNOWN, false
end
if writes then
  marker = string.format('%s %.0f %s', run, mode == 'trust' and now or now + delay, print)
  redis.call('SET', KEYS[1], marker)
end
return struct.pack('<i8i8i8', tonumber(ARGV[1]), status, now) .. marker
