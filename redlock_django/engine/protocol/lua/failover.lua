-- The beginning of each script with a marker, if a replica may take the place of the only master: answer
-- NOT_READY unless this server is still the one that the expected marker names. The marker of a promoted
-- replica is a copy, and a proxy may lead a live link to it. `wire/servers/info.py` explains what is compared.
do
  local server, replication = redis.call('INFO', 'server'), redis.call('INFO', 'replication')
  local run = server:match('run_id:(%x+)') or '?'
  if replication:find('master_replid2:0*[1-9a-f]') then
    run = run .. (replication:match('master_replid:(%x+)') or '?')
  end
  if ARGV[#ARGV - 1]:sub(1, #run) ~= run or not replication:find('role:master', 1, true) then
    local clock = redis.call('TIME')
    return struct.pack('<i8i8i8', tonumber(ARGV[1]), NOT_READY, clock[1] * 1000000 + clock[2])
  end
end

