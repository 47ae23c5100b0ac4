-- Report a master's state. Changes nothing: the commands that write use keys that do not exist, and no
-- client listens on the channel.
-- KEYS: marker, held, then a lock, a fence and a tombstone that do not exist
-- ARGV: round, a channel for calling waiters
-- -> an array: round, status, TIME us in one string, marker (or nothing), number of held resources (or
--    nothing: the ACL hides it), then each command that fails in scripts: its name, and for an error
--    that is not of the ACL a space and the error
local clock = redis.call('TIME')
local now_ms = string.format('%.0f', math.floor(clock[1] * 1000 + clock[2] / 1000))
local lock = KEYS[3]
local reply = { struct.pack('<i8i8i8', tonumber(ARGV[1]), GRANTED, clock[1] * 1000000 + clock[2]), false, false }
local asked = {
  { 'GET', KEYS[1] }, { 'ZCOUNT', KEYS[2], now_ms, '+inf' }, { 'MGET', lock }, { 'SET', lock, '', 'XX', 'PX', '1' },
  { 'DEL', lock }, { 'PEXPIRE', lock, '1' }, { 'PTTL', lock },
  { 'ZADD', lock, 'XX', '0', '' }, { 'ZREM', lock, '' },
  { 'ZRANGEBYSCORE', KEYS[2], '0', '0' }, { 'SCAN', '0', 'COUNT', '1' },
  { 'ZRANGE', KEYS[2], '0', '0' }, { 'ZRANK', KEYS[2], '' }, { 'PUBLISH', ARGV[2], '' },
}
for index, command in ipairs(asked) do
  local answer = redis.pcall(unpack(command))
  local fault = type(answer) == 'table' and answer.err or ''
  if fault:find('permissions') or fault:find('user executing the script') then
    reply[#reply + 1] = command[1]:lower()
  elseif fault ~= '' then
    reply[#reply + 1] = command[1]:lower() .. ' ' .. fault
  elseif index <= 2 then
    reply[1 + index] = answer
  end
end
return reply
