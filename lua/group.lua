-- Begins a generation of a group, unless somebody has begun one here already: then it goes on, as part of the allocation among regions
-- that the caller has adopted. Whoever has adopted an earlier one changes nothing: crates/rights/src/pool/group.rs.
--
-- keys       see pool.lua; no cell
-- arguments  4 the highest number of a generation that the caller has heard of, or refuses
--            5 its wall clock: of no meaning here
--            6 the call that begins it, as `node:process:call`, which there is once
--            7 whether it goes on with what the pools know, if they granted: 0 or 1
-- results    2 `unknown`: 3 the generation that is known now, as `number:node:process:call`, 4 how it is (see pool.lua), 5 the one since which
--              its pools remember
-- atomic     all of it

-- The fingerprint of the config, and the allocation among regions that groups are part of, 0 where there is none: `fingerprint@allocation`.
local function parts_of(fingerprint)
  local base, allocation = string.match(fingerprint, '^(.*)@(%d+)$')
  return base or fingerprint, allocation or '0'
end

-- Whether a number is above another, both without zeros in front, and as large as they like.
local function is_above(one, other)
  return #one > #other or (#one == #other and one > other)
end

register('acequia_group' .. version, function(keys, arguments)
  local group = known(keys, arguments)
  local heard = tonumber(arguments[4])
  local base, allocation = parts_of(arguments[3])
  local kept_base, kept_allocation = parts_of(group.map or '')
  local is_here = group.place == arguments[1] and kept_base == base
  if is_here and is_above(kept_allocation, allocation) then
    -- Whoever has not heard of the last allocation changes nothing.
    return how_it_is(keys, arguments, 'unknown')
  end
  if not is_here or number_of(group.generation) < heard then
    local goes_on = is_here and arguments[7] == '1' and has_mark(keys)
    local before = goes_on and (group.grants and group.generation or group.before) or NEVER
    -- A first: nothing was kept when its first one began, and none has granted before this one.
    group.first = number_of(group.generation) == 0 or (goes_on and not group.grants and group.first == true)
    local above = max(number_of(group.generation), heard) + 1
    group.generation = string.format('%.0f:%s', above, arguments[6])
    if before == NEVER then
      group.since = group.generation
      redis.call('ZADD', keys[3], '+inf', MARK)
    end
    group.before, group.unsure, group.doubts = before, {}, { fresh = 0, burned = 0 }
    group.place, group.grants, group.asserted = arguments[1], false, {}
  elseif allocation == kept_allocation then
    return how_it_is(keys, arguments, 'unknown')
  end
  -- All that is known of pools goes on under a later one.
  group.map = arguments[3]
  redis.call('SET', keys[1], cmsgpack.pack(group))
  return how_it_is(keys, arguments, 'unknown')
end)
