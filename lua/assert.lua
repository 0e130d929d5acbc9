-- A node has told what it holds of every pool of a group: crates/rights/src/pool/group.rs.
--
-- keys       see pool.lua; no cell
-- arguments  6 the node, 7 all nodes of the region, with spaces between
--            8 since when it knows what it took from windows, with all earlier processes of it: wall clock, in microseconds; -1 if
--              no process of it has held or spent anything, ever
--            9 the slack in microseconds
--            10 nodes that are left out, with spaces between; 11 how long leases of theirs may last, in microseconds
-- results    2 `unknown`: 3 the generation that is known here, 4 whether it grants
-- atomic     all of it
redis.register_function('acequia_assert' .. version, function(keys, arguments)
  local group, wall = ground(keys, arguments)
  if group and not group.grants then
    local knows, slack, keep = tonumber(arguments[8]), tonumber(arguments[9]), tonumber(arguments[11])
    group.asserted[arguments[6]] = true
    if knows >= 0 then
      group.burned, group.fresh = max(group.burned, knows + slack), max(group.fresh, wall)
    end
    local absent, told, told_or_absent = {}, true, true
    for node in string.gmatch(arguments[10], '%d+') do
      absent[node] = true
    end
    for node in string.gmatch(arguments[7], '%d+') do
      local has_told = group.asserted[node] == true
      told, told_or_absent = told and has_told, told_or_absent and (has_told or absent[node] == true)
    end
    if told_or_absent and not told then
      local over = wall + max(keep, slack)
      group.burned, group.fresh = max(group.burned, over), max(group.fresh, over)
    end
    group.grants = told_or_absent
    redis.call('SET', keys[1], cmsgpack.pack(group))
  end
  return how_it_is(keys, arguments, 'unknown')
end)
