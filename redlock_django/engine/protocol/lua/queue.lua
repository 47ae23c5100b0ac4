-- The queue of a resource is a sorted set. The score of a waiter is its ticket, the moment (us) at
-- which it began to wait; the score of a called waiter is minus the moment (us) at which its turn
-- ends; the score of a late waiter, which did not use its turn, is LATE plus the moment (us) at
-- which that was noticed. The name of a waiter is the channel of its process, a space, and a number.
--
-- A name with several slots has one queue: as many of its first waiters as slots are free have a turn.
--
-- A waiter for one lock leaves an offer in the hash `offers` (nil: the script has none): the arguments of its
-- refused acquire, with which a release can set the lock for it. After such a grant the offer is kept until
-- the next command of the waiter, which recognizes the lock by the offer.
--
-- The functions are made by this one, which a script calls when a queue exists or a waiter joins
-- one: to make them with every grant takes a tenth of its time. Returns call_first, stand, leave and offer_of.
local function queue_functions(offers)
  local TURN, LINGER = 100000, 3000 -- us of a turn, ms that a queue exists longer than its lock
  local LATE, NEWEST = 4e15, 8 -- above every ticket; how many of the last waiters may be asked to watch
  local FRESH, FRESHEST = 0.1, 1000000 -- the part of the TTL, and the us, for which an offer lasts

  local function channel_of(name)
    return name:match('^(.*) ')
  end

  -- Return the value that a waiter has offered to set, and the rest of its offer; nothing if it has none.
  local function offer_of(name)
    local offer = offers and redis.pcall('HGET', offers, name)
    local parts = type(offer) == 'string' and { pcall(cmsgpack.unpack, offer) } or {}
    if parts[1] and #parts == 12 then -- otherwise another program or version has written it
      return unpack(parts, 2)
    end
  end

  -- Remove a waiter, with its offer.
  local function leave(key, name)
    redis.pcall('ZREM', key, name)
    if offers then
      redis.pcall('HDEL', offers, name)
    end
  end

  -- Remove all waiters of a process, except one.
  local function remove_process(key, channel, except)
    for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      if name ~= except and channel_of(name) == channel then
        leave(key, name)
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

  -- Set a free lock by the offer of a waiter, and publish that on the waiter's channel: its name, '=', a
  -- proof, TIME us, fence. The proof is the SHA-1 of token and marker: other clients may listen, and must
  -- neither learn the token nor publish the message on another master. Returns whether the lock is set.
  local function grant(name, channel, now, lock, resource)
    local value, at, proposal, ttl, skew, fence_ttl, max_ttl, trusted, tomb, marker, fence = offer_of(name)
    -- An old offer is not used: the validity of the lock counts from the moment at which the waiter asked,
    -- and the waiter may have stopped since. To call a stopped waiter costs the others only one turn.
    local age = value and now - at
    -- The undo of an attempt must not set the lock again by the offer of the same attempt.
    if not value or value == ARGV[2] or age < 0 or age > math.min(ttl * 1000 * FRESH, FRESHEST) then
      return false
    end
    local seen = redis.pcall('MGET', marker, fence, tomb)
    if seen.err or seen[1] ~= trusted or seen[3] then
      return false
    end
    if seen[2] and not (seen[2]:find('^%d+$') and #seen[2] <= 16) then
      return false
    end
    local raised = math.max(tonumber(seen[2] or 0) + 1, proposal)
    if raised > now + 2 * skew then
      return false
    end
    local now_ms = math.floor(now / 1000) -- as in index.lua, whose functions would cost every release
    local period = -math.floor(now_ms / max_ttl)
    local listed = redis.pcall('ZADD', KEYS[1], 'CH', now_ms + ttl, resource, period, '')
    if type(listed) ~= 'number' then
      return false
    end
    if listed > 1 then
      redis.call('PEXPIRE', KEYS[1], 2 * max_ttl)
    end
    local stored = redis.pcall('SET', fence, raised, 'PX', fence_ttl)
    local set = stored.ok and redis.pcall('SET', lock, value, 'NX', 'PX', ttl)
    if set and set.ok then
      local proof = redis.sha1hex(value:sub(1, 32) .. trusted)
      local heard = redis.pcall('PUBLISH', channel, string.format('%s=%s %.0f %.0f', name, proof, now, raised))
      if type(heard) == 'number' and heard > 0 then
        redis.pcall('PEXPIRE', offers, ttl + LINGER) -- the waiter recognizes the lock by the offer
        return true
      end
      redis.call('DEL', lock)
    end
    redis.pcall('ZREM', KEYS[1], resource)
    return false
  end

  -- Call the first waiter whose process listens; where several slots are free (`free`, 1 if left out),
  -- the first waiters, so that as many have a turn. Returns a waiter whose turn it is, and the us that its
  -- turn still lasts; nothing if fewer waiters are in front of `waiter`, whose ticket is `ticket` ('' and
  -- nil for a client that is not in the queue: every waiter is in front of it). A waiter learns which slot
  -- to ask for by its number in `slots`, if there are any. A release passes the key and
  -- the resource of its lock (`freed`), which is granted to the first waiter if that has left an offer.
  local function call_first(key, now, waiter, ticket, free, slots, freed)
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
      elseif channel and freed and score < LATE and grant(name, channel, now, unpack(freed)) then
        redis.call('ZREM', key, name)
        return
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
        leave(key, name)
      end
      if left and turns >= (free or 1) then
        return name, left
      end
    end
  end

  -- Join the queue of a lock that lasts `lasts` ms, and leave an offer (nil: none). Returns the number of
  -- waiters in front; -1 for a client that does not wait.
  local function stand(key, waiter, ticket, lasts, offer)
    if waiter == '' or type(redis.pcall('ZADD', key, string.format('%.0f', ticket), waiter)) ~= 'number' then
      return -1
    end
    redis.call('PEXPIRE', key, lasts + LINGER)
    if offer and type(redis.pcall('HSET', offers, waiter, offer)) == 'number' then
      redis.call('PEXPIRE', offers, lasts + LINGER)
    end
    local ahead = redis.pcall('ZRANK', key, waiter)
    return type(ahead) == 'number' and ahead or -1
  end

  return call_first, stand, leave, offer_of
end

