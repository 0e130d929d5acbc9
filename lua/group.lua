-- Begins a generation of a group, unless somebody has begun one here already, or one of a later distribution among regions:
-- crates/rights/src/pool/group.rs.
--
-- keys       see pool.lua; no cell
-- arguments  4 the highest number of a generation that the caller has heard of
--            5 its wall clock: of no meaning here
--            6 the call that begins it, as `node:boot:call`, which there is once
-- results    2 `unknown`: 3 the generation that is known now, as `number:node:boot:call`, 4 whether it grants
-- atomic     all of it

-- Whether a map is part of a later distribution among regions than another that is the same but for that: `map@distribution`. Numbers
-- without zeros in front.
local function is_later(kept, map)
  local kept_base, kept_terms = string.match(kept or '', '^(.*)@(%d+)$')
  local base, terms = string.match(map, '^(.*)@(%d+)$')
  if not kept_base then
    return false
  end
  if not base then
    return kept_base == map
  end
  return kept_base == base and (#kept_terms > #terms or (#kept_terms == #terms and kept_terms > terms))
end

redis.register_function('acequia_group' .. version, function(keys, arguments)
  local group, generation = known(keys, arguments)
  local number, heard = number_of(generation), tonumber(arguments[4])
  -- Whoever has not heard of the last distribution keeps nobody from what is part of it.
  local knows_less = group.place == arguments[1] and is_later(group.map, arguments[3])
  if not knows_less and (number == 0 or number < heard) then
    local above = max(number_of(group.generation), heard) + 1
    group.generation = string.format('%.0f:%s', above, arguments[6])
    group.place, group.map, group.grants, group.asserted = arguments[1], arguments[3], false, {}
    redis.call('SET', keys[1], cmsgpack.pack(group))
  end
  return how_it_is(keys, arguments, 'unknown')
end)
