-- A node has told what it holds of every pool of a group: crates/rights/src/pool/group.rs.
--
-- keys       see pool.lua; no cell
-- arguments  6 the node, 7 all nodes of the region, with spaces between
--            8 since when it knows what it took from windows, with all earlier processes of it: wall clock, in microseconds
--            9 the slack in microseconds
--            10 excluded nodes, with spaces between; 11 how long leases of theirs may last, in microseconds
--            12 the last generation that it had heard of before this one, but for those that went on here and that it has not heard to grant
--            13 whether it is new: no process of it has held or spent anything, as far as it knows; 0 or 1
-- results    2 `unknown`: 3 the generation that is known here, 4 how it is (see pool.lua), 5 the one since which its pools remember
-- atomic     all of it
register('acequia_assert' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if group and not group.grants then
    local node, knows, slack = arguments[6], tonumber(arguments[8]), tonumber(arguments[9])
    local doubts = group.doubts or { fresh = 0, burned = 0 }
    group.asserted[node] = true
    group.first = group.first and arguments[13] == '1'
    doubts.burned, doubts.fresh = max(doubts.burned, knows + slack), max(doubts.fresh, wall)
    group.doubts, group.unsure = doubts, group.unsure or {}
    local excluded, told, told_or_excluded, is_node, unsure = {}, true, true, false, true
    for other in string.gmatch(arguments[10], '%d+') do
      excluded[other] = true
    end
    for other in string.gmatch(arguments[7], '%d+') do
      local has_told = group.asserted[other] == true
      told, told_or_excluded = told and has_told, told_or_excluded and (has_told or excluded[other] == true)
      is_node = is_node or other == node
      unsure = unsure and (not has_told or excluded[other] == true or other == node or group.unsure[other] == true)
    end
    if told_or_excluded then
      group.first = group.first and told
      if group.before == NEVER then
        if not group.first then
          group.burned, group.fresh = max(group.burned, doubts.burned), max(group.fresh, doubts.fresh)
        end
        group.grants = true
      elseif is_node and group.before == arguments[12] then
        group.grants, group.before = true, NEVER
      else
        -- When none of them can tell that nothing was forgotten, nothing is known here any more.
        group.unsure[node] = true
        if unsure then
          group.place = ''
        end
      end
    end
    if group.grants and not told then
      local over = wall + max(tonumber(arguments[11]), slack)
      group.burned, group.fresh = max(group.burned, over), max(group.fresh, over)
    end
    redis.call('SET', keys[1], cmsgpack.pack(group))
  end
  return how_it_is(keys, arguments, 'unknown')
end)
