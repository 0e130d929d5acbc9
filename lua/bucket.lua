-- Exchanges what a node holds of a bucket: crates/rights/src/pool/bucket.rs.
--
-- keys       see pool.lua
-- arguments  6 the node, 7 which process of it, 8 which call of that
--            9 parts of the rate and 10 units that it keeps, 11 of the units that it does not keep, those that are not owed
--            12 parts of the rate and 13 units that it would like besides
--            14 units with tokens without which it needs no more units now, 15 units of the level that stay for others
--            16 how long it counts on what is granted, in microseconds
--            17 ticks that a unit weighs, 18 ticks that a part of the rate gives in a step, 19 microseconds of a step
--            20 parts of the rate and 21 units in the pool, 22 the slack in microseconds
-- results    3 parts of the rate and 4 units that the node may hold, 5 units that it must owe besides what it does
--            6 whole units that could be granted now, 7 parts of the rate that would be its share
-- atomic     all of it
local function lent(cell)
  local rate, units = 0, 0
  for _, lease in pairs(cell.nodes) do
    rate, units = rate + lease.rate, min(units + lease.units, POOL_MAX)
  end
  return rate, units
end

-- The same in proportion, of a pool that has so much.
local function lent_of(cell, params)
  local rate, units = 0, 0
  for _, lease in pairs(cell.nodes) do
    rate = min(rate + in_proportion(lease.rate, params.rate, lease.of_rate or params.rate), POOL_MAX)
    units = min(units + in_proportion(lease.units, params.units, lease.of_units or params.units), POOL_MAX)
  end
  return rate, units
end

-- What parts of the rate give in a time, in ticks: at least what they do.
local function gives_in(params, rate, us)
  return min(quotient_up(us, params.step) * (params.gives * rate), WEIGHT_MAX)
end

-- What ticks cannot count is owed besides, in units.
local function owe_units(cell, params, units)
  if units > 0 then
    local counted = min(units, quotient(POOL_MAX - cell.debt, params.weight))
    cell.debt = cell.debt + counted * params.weight
    cell.beyond, cell.idle = min((cell.beyond or 0) + units - counted, POOL_MAX), 0
  end
end

-- Parts of the rate come back that may have drained elsewhere until the slack ago.
local function owe_late(cell, params, rate)
  local ticks = gives_in(params, rate, params.slack)
  if ticks > POOL_MAX - cell.debt then
    owe_units(cell, params, quotient_up(ticks, params.weight))
  elseif ticks > 0 then
    cell.debt, cell.idle = cell.debt + ticks, 0
  end
end

local function drain(cell, params, now)
  local steps = quotient(less(now, cell.at), params.step)
  cell.at = cell.at + steps * params.step
  local gives = params.gives * less(params.rate, (lent(cell)))
  local needed = 0
  if cell.debt > 0 then
    needed = gives == 0 and math.huge or quotient_up(cell.debt, gives)
  end
  if steps >= needed then
    cell.debt, cell.idle = 0, min((steps - needed) * params.step + cell.idle, params.slack)
  else
    cell.debt = cell.debt - steps * gives
  end
  -- At most as much as this holds drains between two calls.
  local beyond = cell.beyond or 0
  cell.beyond = 0
  owe_units(cell, params, beyond)
end

-- Debts under other parameters are as many units, rounded up.
local function convert(cell, params)
  if cell.weight ~= params.weight or cell.gives ~= params.gives or cell.step ~= params.step then
    local units = cell.debt == 0 and 0 or quotient(cell.debt, cell.weight) + 1
    local owed = units + (cell.beyond or 0)
    cell.debt, cell.beyond = 0, 0
    cell.weight, cell.gives, cell.step = params.weight, params.gives, params.step
    owe_units(cell, params, owed)
  end
end

-- Whether a lease says anything beyond which call was the last.
local function is_held(lease)
  return lease.rate > 0 or lease.units > 0 or lease.wanted > 0
end

-- Lets time pass until now.
local function settle(cell, params, group, now)
  convert(cell, params)
  -- A call may have come before it was known until when nothing is, whatever its clock said.
  if (cell.fresh or 0) < group.fresh then
    cell.fresh, cell.unknown, cell.at = group.fresh, 0, max(cell.at, group.fresh)
  end
  if (cell.fresh or 0) > 0 then
    -- What is not lent of the units that there are, and those that come later by which there are more.
    if cell.unknown == 0 then
      -- No more than is lent can be elsewhere, and no more than is a part of these.
      local _, all = lent(cell)
      local _, part = lent_of(cell, params)
      local units = min(all, part)
      cell.debt = max(cell.debt, min(less(params.units, units) * params.weight, WEIGHT_MAX))
      cell.idle = 0
    else
      owe_units(cell, params, less(params.units, cell.unknown))
    end
    cell.unknown = max(cell.unknown, params.units)
  end
  while true do
    local ends = math.huge
    for _, lease in pairs(cell.nodes) do
      if lease.ends <= now and is_held(lease) then
        ends = min(ends, lease.ends)
      end
    end
    if ends == math.huge then
      break
    end
    drain(cell, params, ends)
    local rate, units = 0, 0
    for _, lease in pairs(cell.nodes) do
      if lease.ends <= ends then
        rate, units = rate + lease.rate, min(units + lease.units, POOL_MAX)
        lease.rate, lease.units, lease.wanted = 0, 0, 0
      end
    end
    owe_units(cell, params, units)
    owe_late(cell, params, rate)
  end
  drain(cell, params, now)
end

-- When a cell surely says no more than an absent one.
local function over(cell, params, group)
  if params.rate == 0 or (cell.beyond or 0) > 0 then
    return TIME_MAX
  end
  local latest = max(cell.at, group.fresh)
  for _, lease in pairs(cell.nodes) do
    if is_held(lease) then
      latest = max(latest, lease.ends)
    end
  end
  local _, units = lent(cell)
  local owed = 2 * min(max(units, params.units) * params.weight, WEIGHT_MAX)
  local ticks = cell.debt + owed + gives_in(params, params.rate, params.slack)
  local refill = quotient_up(ticks, params.gives * params.rate) * params.step
  return min(latest + refill + 2 * params.slack, TIME_MAX)
end

register('acequia_bucket' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local node, process, call = arguments[6], tonumber(arguments[7]), tonumber(arguments[8])
  local rate, units = min(tonumber(arguments[9]), RATE_PARTS), min(tonumber(arguments[10]), POOL_MAX)
  local tokens = tonumber(arguments[11])
  local wanted_rate, wanted_units = tonumber(arguments[12]), tonumber(arguments[13])
  local needed, reserved, keep = tonumber(arguments[14]), tonumber(arguments[15]), tonumber(arguments[16])
  local params = {
    weight = tonumber(arguments[17]),
    gives = tonumber(arguments[18]),
    step = tonumber(arguments[19]),
    rate = tonumber(arguments[20]),
    units = tonumber(arguments[21]),
    slack = tonumber(arguments[22]),
  }
  local cell = pool_of(keys, group, { at = 0, debt = 0, idle = 0, fresh = 0, unknown = 0, weight = 0, gives = 0, step = 0 })
  if not cell then
    return how_it_is(keys, arguments, 'unknown')
  end
  if is_late(cell, group, wall, params.slack) then
    return { arguments[2], 'late' }
  end
  local now = max(cell.at, wall)
  local record, why = record_of(cell, node, process, call, function(lease)
    return not is_held(lease) and is_past(lease.ends, cell, group, params.slack)
  end)
  if not record then
    return { arguments[2], why }
  end
  settle(cell, params, group, now)

  -- Of an earlier process everything comes back, and all of it is owed.
  if process > record.boot then
    tokens = 0
  end
  local back, slower = less(record.units or 0, units), less(record.rate or 0, rate)
  owe_units(cell, params, less(back, tokens))
  owe_late(cell, params, slower)
  cell.nodes[node] = nil

  local lent_rate, lent_units = lent_of(cell, params)
  local spare_rate = less(params.rate, lent_rate + rate)
  local spare_units = less(params.units, lent_units + units)
  local unsure = gives_in(params, params.rate, less(params.slack, cell.idle))
  local ticks = min(spare_units * params.weight, WEIGHT_MAX)
  local level = quotient(less(less(ticks, cell.debt), unsure), params.weight)
  local liked = min(rate + wanted_rate, RATE_PARTS)
  local all = liked
  for _, lease in pairs(cell.nodes) do
    all = all + lease.wanted
  end
  local fair = all <= params.rate and liked or quotient(liked * params.rate, all)
  local owed, left = 0, level
  if group.grants and wall >= group.fresh then
    rate = rate + min(less(fair, rate), spare_rate)
    local wanted = min(wanted_units, spare_units)
    local granted = min(less(level, reserved), wanted)
    if granted >= needed then
      -- Units go with the debt that there is for them.
      local gained = min(wanted, granted + quotient(cell.debt, params.weight))
      owed = gained - granted
      cell.debt = less(cell.debt, owed * params.weight)
      units, left = units + gained, left - granted
    end
  end
  cell.nodes[node] = {
    boot = process,
    call = call,
    rate = rate,
    units = units,
    of_rate = params.rate,
    of_units = params.units,
    ends = min(cell.at + keep, TIME_MAX),
    wanted = liked,
  }
  cell.seen = wall
  write(keys, cell, over(cell, params, group))
  return { arguments[2], 'done', rate, units, owed, left, fair }
end)
