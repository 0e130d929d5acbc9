-- Takes units of a window with edges, for good, and takes back what a node returns: crates/rights/src/pool/window.rs.
--
-- keys       see pool.lua
-- arguments  6 the node, 7 which process of it
--            8 units that it knows to have taken, 9 units that it has returned, in all
--            10 units more that it would like, 11 of those, units without which the others are of no use now
--            12 units that stay for others, 13 units in the pool
--            14 when the window begins, 15 when nobody asks for it any more: wall clock, in microseconds
--            16 which call of the process: one that comes after a later one is granted nothing
--            17 of 13: 0 where the window has not begun, 1 where the caller is in it, 2 where it goes by what was said last by one that
--              was, and by no more than 13
-- results    3 units that the node has taken in all, 4 units that nobody has
-- atomic     all of it
local PART = 10

register('acequia_window' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local node, process = arguments[6], tonumber(arguments[7])
  local said_taken, said_returned = tonumber(arguments[8]), tonumber(arguments[9])
  local wanted, needed = tonumber(arguments[10]), tonumber(arguments[11])
  local reserved, total = tonumber(arguments[12]), min(tonumber(arguments[13]), POOL_MAX)
  local begins, drops = tonumber(arguments[14]), tonumber(arguments[15])
  if wall >= drops then
    return { arguments[2], 'late' }
  end

  local cell = pool_of(keys, group, { spent = 0 })
  if not cell then
    return how_it_is(keys, arguments, 'unknown')
  end
  -- What is said needs no number of the call: it only grows.
  local record, why = record_of(cell, node, process, 1, function(taken)
    return taken.taken == taken.returned
  end)
  if not record then
    return { arguments[2], why }
  end
  if process > record.boot then
    local taken, returned = record.taken or 0, record.returned or 0
    if said_taken < taken then
      cell.spent = min(cell.spent + taken - returned, POOL_MAX)
      taken, returned = 0, 0
    end
    -- A process that knows what those before it took goes on with their numbers.
    record = { boot = process, call = 0, taken = taken, returned = returned }
    cell.nodes[node] = record
  end
  record.taken = max(record.taken, min(said_taken, POOL_MAX))
  record.returned = max(record.returned, min(said_returned, record.taken))

  local call, how = tonumber(arguments[16]), tonumber(arguments[17])
  local is_newest = call > (record.last or 0)
  if how == 1 then
    cell.said = is_newest and total or cell.said
  elseif how == 2 then
    total = min(cell.said or 0, total)
  end
  if is_newest then
    record.total, record.last = total, call
  end
  local out, nodes = cell.spent, 0
  for _, other in pairs(cell.nodes) do
    local units = other.taken - other.returned
    -- Before the window begins, in proportion.
    units = how == 0 and in_proportion(units, total, other.total or total) or units
    out, nodes = min(out + units, POOL_MAX), nodes + 1
  end
  local left = less(begins < group.burned and 0 or total, out)
  local free = less(left, reserved)
  local ahead = less(record.taken, said_taken)
  wanted, needed = less(wanted, ahead), less(needed, ahead)
  local granted = 0
  if is_newest and group.grants and needed <= free then
    granted = min(wanted, max(needed, quotient(left, PART * nodes)), free)
  end
  record.taken = record.taken + granted
  cell.seen = wall
  write(keys, cell, drops)
  return { arguments[2], 'done', record.taken, left - granted }
end)
