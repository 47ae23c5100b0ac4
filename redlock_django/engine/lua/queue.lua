-- The queue of a resource, a sorted set: every waiter by its ticket, the moment (us) it began to
-- wait; one that was called, by minus the moment (us) its turn is over. A waiter's name is the
-- channel that its process hears, a space, and a number.
local TURN, LINGER = 100000, 3000 -- us that a turn lasts, ms that a queue outlives its lock

-- Call the first waiter that hears it. Returns whose turn it is, and for how many us more;
-- nothing where nobody stands before `waiter`, who has `ticket` ('' and nil: behind everybody).
local function call_first(key, now, waiter, ticket)
  for _ = 1, 1000 do
    local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
    local name, score = first[1], tonumber(first[2])
    if not name or name == waiter then
      return
    end
    -- Of the same moment, the first by name: each master must have the same order.
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
    -- Gone, or its turn passed unused: who still waits comes back with the same ticket.
    redis.call('ZREM', key, name)
  end
end

-- Join the queue for a lock that lasts so many ms. Returns how many stand before us; -1 for
-- one who does not wait.
local function stand(key, waiter, ticket, lasts)
  if waiter == '' or type(redis.pcall('ZADD', key, string.format('%.0f', ticket), waiter)) ~= 'number' then
    return -1
  end
  redis.call('PEXPIRE', key, lasts + LINGER)
  local ahead = redis.pcall('ZRANK', key, waiter)
  return type(ahead) == 'number' and ahead or -1
end

