-- Look at the slots of a name, for acquire.lua: which are `taken`, which are `free`, and how long (`left`, in
-- ms) until one is. KEYS 7 and the following are their locks.
free, taken, left = {}, '', -1
for slot = 1, slots do
  local holder = seen[6 + slot]
  taken = taken .. (holder and '1' or '0')
  if holder then
    local lasts = redis.call('PTTL', KEYS[6 + slot])
    -- A clock that went back makes locks last too long: see acquire.lua.
    if lasts > max_ttl and holder:find('^%x+ {') == 1 and holder:find(' ', 1, true) == 33 then
      redis.call('PEXPIRE', KEYS[6 + slot], max_ttl)
      lasts = max_ttl
    end
    left = lasts >= 0 and (left < 0 or lasts < left) and lasts or left
  else
    free[#free + 1] = slot - 1
  end
end
is_full = #free == 0
