-- The queue of a resource is a sorted set. The score of a waiter is its ticket, the moment (us) at
-- which it began to wait; the score of a called waiter is minus the moment (us) at which its turn
-- ends; the score of a late waiter, which did not use its turn, is LATE plus the moment (us) at
-- which that was noticed. The name of a waiter is the channel of its process, a space, and a number.
--
-- A name with several slots has one queue: as many of its first waiters as slots are free have a turn.
--
-- Defines call_first and stand, which the script declares: it includes this file where it needs them,
-- because functions take time to make.
local TURN, LINGER = 100000, 3000 -- us of a turn, ms that a queue exists longer than its lock
local LATE, NEWEST = 4e15, 8 -- above every ticket; how many of the last waiters may be asked to watch

local function channel_of(name)
  return name:match('^(.*) ')
end

-- Remove all waiters of a process, except one.
local function remove_process(key, channel, except)
  for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if name ~= except and channel_of(name) == channel then
      redis.call('ZREM', key, name)
    end
  end
end

local function is_late(key, waiter)
  for _, name in ipairs(redis.pcall('ZRANGEBYSCORE', key, string.format('%.0f', LATE), '+inf')) do
    if name == waiter then
      return true
    end
  end
  return false
end

-- Ask a waiter to watch the turn of `name` that begins: to try again when it is over. That is the
-- newest waiter, which was alive last, if possible of another process.
local function ask_to_watch(key, name)
  local last = redis.pcall('ZRANGE', key, -NEWEST, -1)
  local own, watcher = channel_of(name), nil
  for index = #last, 1, -1 do
    local channel = last[index] ~= name and channel_of(last[index])
    if channel and channel ~= own then
      watcher = last[index]
      break
    end
    watcher = watcher or channel and last[index]
  end
  if watcher then
    redis.pcall('PUBLISH', channel_of(watcher), ' ' .. watcher)
  end
end

-- Call the first waiter whose process listens; where several slots are free (`free`, 1 if left out),
-- the first waiters, so that as many have a turn. Returns a waiter whose turn it is, and the us that its
-- turn still lasts; nothing if fewer waiters are in front of `waiter`, whose ticket is `ticket` ('' and
-- nil for a client that is not in the queue: every waiter is in front of it). A waiter learns which slot
-- to ask for by its number in `slots`, if there are any.
function call_first(key, now, waiter, ticket, free, slots)
  local turns = 0 -- how many waiters in front have a turn: these are the first in the queue
  for _ = 1, 1000 do
    local first = redis.pcall('ZRANGE', key, turns, turns, 'WITHSCORES')
    local name, score = first[1], tonumber(first[2])
    if not name or name == waiter then
      return
    end
    -- Equal tickets are ordered by name: each master must have the same order.
    if ticket and score >= 0 and (ticket < score or ticket == score and waiter < name) then
      return
    end
    -- On a busy host every waiter may be late. So a late waiter may take the lock in the turn of
    -- another waiter.
    if ticket and is_late(key, waiter) then
      return
    end
    local left = score < 0 and now < -score and -score - now
    local channel = channel_of(name)
    if left then
      turns = turns + 1
    elseif channel and score < 0 then
      -- The process may have stopped, so its other waiters must not be called one after the other.
      -- Those that still wait come back with the same ticket. A process that asks has not stopped.
      redis.call('ZADD', key, string.format('%.0f', LATE + now), name)
      if channel ~= channel_of(waiter) then
        remove_process(key, channel, name)
        turns = 0 -- some of them may have had a turn
      end
    elseif channel then
      local slot = slots and '/' .. slots[turns % #slots + 1] or ''
      local heard = redis.pcall('PUBLISH', channel, name .. slot)
      if type(heard) ~= 'number' or heard == 0 then
        remove_process(key, channel)
        turns = 0
      elseif score >= LATE then
        return -- a late waiter gets no second turn before it has asked again
      else
        redis.call('ZADD', key, string.format('%.0f', -now - TURN), name)
        if not ticket then
          ask_to_watch(key, name)
        end
        turns, left = turns + 1, TURN
      end
    else
      redis.call('ZREM', key, name)
    end
    if left and turns >= (free or 1) then
      return name, left
    end
  end
end

-- Join the queue of a lock that lasts `lasts` ms. Returns the number of waiters in front; -1 if the queue
-- cannot be joined.
function stand(key, waiter, ticket, lasts)
  if type(redis.pcall('ZADD', key, string.format('%.0f', ticket), waiter)) ~= 'number' then
    return -1
  end
  redis.call('PEXPIRE', key, lasts + LINGER)
  local ahead = redis.pcall('ZRANK', key, waiter)
  return type(ahead) == 'number' and ahead or -1
end

