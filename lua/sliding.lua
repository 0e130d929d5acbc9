-- Exchanges what a node holds of a sliding window: crates/rights/src/pool/sliding.rs.
--
-- keys       see pool.lua
-- arguments  6 the node, 7 which process of it, 8 which call of that
--            9 units that it keeps, 10 of those that it does not keep, units that it has not used in the last window
--            11 units more that it would like, 12 of those, units without which it needs no others now
--            13 units that stay for others
--            14 how long it counts on what is granted, 15 how long what it used may count, in microseconds
--            16 units in the pool, 17 the slack in microseconds
-- results    3 units that the node may hold, 4 units that nobody has
-- atomic     all of it
local PIECES = 16

-- Units that were used until a time at the latest.
local function linger(cell, units, from, lingers)
  if units > 0 then
    local piece = max(quotient_up(lingers, PIECES), 1)
    local ends = string.format('%.0f', min(quotient_up(from + lingers, piece) * piece, TIME_MAX))
    cell.lingering[ends] = min((cell.lingering[ends] or 0) + units, POOL_MAX)
  end
end

-- Units that are held or linger, of a pool that has so many.
local function out(cell, total)
  local sum = 0
  for _, lease in pairs(cell.nodes) do
    sum = min(sum + in_proportion(lease.units, total, lease.total or total), POOL_MAX)
  end
  for _, units in pairs(cell.lingering) do
    sum = min(sum + units, POOL_MAX)
  end
  return sum
end

register('acequia_sliding' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local node, process, call = arguments[6], tonumber(arguments[7]), tonumber(arguments[8])
  local units, unused = min(tonumber(arguments[9]), POOL_MAX), tonumber(arguments[10])
  local wanted, needed, reserved = tonumber(arguments[11]), tonumber(arguments[12]), tonumber(arguments[13])
  local keep, lingers = tonumber(arguments[14]), tonumber(arguments[15])
  local total, slack = min(tonumber(arguments[16]), POOL_MAX), tonumber(arguments[17])
  local cell = pool_of(keys, group, { at = 0, lingering = {} })
  if not cell then
    return how_it_is(keys, arguments, 'unknown')
  end
  if is_late(cell, group, wall, slack) then
    return { arguments[2], 'late' }
  end
  local record, why = record_of(cell, node, process, call, function(lease)
    return lease.units == 0 and is_past(lease.ends, cell, group, slack)
  end)
  if not record then
    return { arguments[2], why }
  end

  cell.at = max(cell.at, wall)
  for _, lease in pairs(cell.nodes) do
    if lease.ends <= cell.at and lease.units > 0 then
      linger(cell, lease.units, lease.ends, lease.lingers)
      lease.units = 0
    end
  end
  for ends in pairs(cell.lingering) do
    if tonumber(ends) <= cell.at then
      cell.lingering[ends] = nil
    end
  end

  -- Of an earlier process everything may have been used.
  if process > record.boot then
    unused = 0
  end
  linger(cell, less(less(record.units or 0, units), unused), cell.at, lingers)
  cell.nodes[node] = nil

  local left = less(total, min(out(cell, total) + units, POOL_MAX))
  if group.grants and cell.at >= group.fresh + lingers then
    local free = less(left, reserved)
    if needed <= free then
      local granted = min(wanted, free)
      units, left = units + granted, left - granted
    end
  end
  cell.nodes[node] = {
    boot = process,
    call = call,
    units = units,
    total = total,
    ends = min(cell.at + keep, TIME_MAX),
    lingers = lingers,
  }
  cell.seen = wall
  local latest = max(cell.at, group.fresh)
  for _, lease in pairs(cell.nodes) do
    if lease.units > 0 then
      latest = max(latest, lease.ends)
    end
  end
  write(keys, cell, min(latest + 2 * lingers + slack, TIME_MAX))
  return { arguments[2], 'done', units, left }
end)
