-- Begins a generation of a group, unless somebody has begun one here already: crates/rights/src/pool/group.rs.
--
-- keys       see pool.lua; no cell
-- arguments  4 the highest number of a generation that the caller has heard of
--            5 its wall clock: of no meaning here
--            6 the call that begins it, as `node:boot:call`, which there is once
-- results    2 `unknown`: 3 the generation that is known now, as `number:node:boot:call`, 4 whether it grants
-- atomic     all of it
redis.register_function('acequia_group' .. version, function(keys, arguments)
  local group, generation = known(keys, arguments)
  local number, heard = number_of(generation), tonumber(arguments[4])
  if number == 0 or number < heard then
    local above = max(number_of(group.generation), heard) + 1
    group.generation = string.format('%.0f:%s', above, arguments[6])
    group.place, group.map, group.grants, group.asserted = arguments[1], arguments[3], false, {}
    redis.call('SET', keys[1], cmsgpack.pack(group))
  end
  return how_it_is(keys, arguments, 'unknown')
end)
