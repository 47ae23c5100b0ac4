-- Return whether this master is trusted, and store the answer in its marker for later clients.
-- A master without a marker gets one only if the client knows that no other deployment uses the
-- masters: in the modes 'mark', 'trust' and 'reconfigure'.
-- A master with another run_id than its marker has restarted and may have forgotten locks:
-- its votes count again only after every lock that it may have forgotten has expired.
-- KEYS: marker
-- ARGV: round, run_id, fingerprint, delay us, mode ('join', 'mark', 'distrust', 'trust',
--       'reconfigure')
-- -> round, status (KNOWN, MARKED, UNMARKED, MISMATCH), TIME us, ready-at us,
--    marker, the reason ('', 'fresh', 'restarted', 'stepped', or the other fingerprint)
local round, run, print, delay = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local mode = ARGV[5]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.call('GET', KEYS[1])
local was, at, other = (seen or ''):match('^(%x+) (%d+) (%S+)$')
local why = ''
if not was then
  if mode == 'join' or mode == 'distrust' then
    return { round, UNMARKED, now, 0, '', '' }
  end
  why = 'fresh'
elseif other ~= print and mode ~= 'reconfigure' then
  return { round, MISMATCH, now, tonumber(at), seen, other }
elseif was ~= run then
  why = 'restarted'
elseif mode == 'distrust' then
  why = 'stepped'
elseif (mode == 'join' or mode == 'mark') and tonumber(at) <= now + delay then
  -- A ready-at further away than the delay was written by a clock that has gone back since.
  return { round, KNOWN, now, tonumber(at), seen, '' }
end
local ready = now + delay
if mode == 'trust' then
  ready = now
end
local marker = run .. ' ' .. string.format('%.0f', ready) .. ' ' .. print
redis.call('SET', KEYS[1], marker)
return { round, MARKED, now, ready, marker, why }
