-- The queue of a resource is a sorted set. The score of a waiter is its ticket, the moment (us) at
-- which it began to wait; the score of a called waiter is minus the moment (us) at which its turn
-- ends. The name of a waiter is the channel of its process, a space, and a number.
local TURN, LINGER = 100000, 3000 -- us of a turn, ms that a queue exists longer than its lock

-- Call the first waiter whose process listens. Returns the waiter whose turn it is, and the us that
-- its turn still lasts; nothing if no waiter is in front of `waiter`, whose ticket is `ticket` (''
-- and nil for a client that is not in the queue: every waiter is in front of it).
local function call_first(key, now, waiter, ticket)
  for _ = 1, 1000 do
    local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
    local name, score = first[1], tonumber(first[2])
    if not name or name == waiter then
      return
    end
    -- Equal tickets are ordered by name: each master must have the same order.
    if ticket and score >= 0 and (ticket < score or ticket == score and waiter < name) then
      return
    end
    if score < 0 and now < -score then
      return name, -score - now
    end
    local channel = name:match('^(.*) ')
    local heard = score >= 0 and channel and redis.pcall('PUBLISH', channel, name)
    if type(heard) == 'number' and heard > 0 then
      redis.call('ZADD', key, string.format('%.0f', -now - TURN), name)
      return name, TURN
    end
    -- The waiter is gone, or did not use its turn. If it still waits, it comes back with the same
    -- ticket.
    redis.call('ZREM', key, name)
  end
end

-- Join the queue of a lock that lasts `lasts` ms. Returns the number of waiters in front; -1 for a
-- client that does not wait.
local function stand(key, waiter, ticket, lasts)
  if waiter == '' or type(redis.pcall('ZADD', key, string.format('%.0f', ticket), waiter)) ~= 'number' then
    return -1
  end
  redis.call('PEXPIRE', key, lasts + LINGER)
  local ahead = redis.pcall('ZRANK', key, waiter)
  return type(ahead) == 'number' and ahead or -1
end

