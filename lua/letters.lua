-- What nodes of a region have to tell one of them: crates/rights/src/pool/letters.rs.
--
-- keys       see pool.lua
-- arguments  6 charges of which the letters are not needed any more, with spaces between
--            7 a charge that is settled, 8 its real cost, or nothing where all is given back; both nothing where letters are collected
--            9 when nobody need keep that any more: wall clock, in microseconds
-- results    3 whether it is there, as 0 or 1, where one is left; else, of each letter that waits, the charge and its cost
-- atomic     all of it
local LETTERS_MAX = 256

register('acequia_letters' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local had, charge, cost, drops = arguments[6], arguments[7], arguments[8], tonumber(arguments[9])
  local cell = cell_of(keys, group, { waiting = {}, drops = 0 })
  if wall >= cell.drops then
    cell.waiting = {}
  end
  for other in string.gmatch(had, '%x+') do
    cell.waiting[other] = nil
  end
  local answer = { arguments[2], 'done' }
  if charge == '' then
    for other, its_cost in pairs(cell.waiting) do
      table.insert(answer, other)
      table.insert(answer, its_cost)
    end
  else
    local count = 0
    for _ in pairs(cell.waiting) do
      count = count + 1
    end
    local is_there = cell.waiting[charge] ~= nil or count < LETTERS_MAX
    if is_there then
      cell.waiting[charge] = cell.waiting[charge] or cost
      cell.drops = max(cell.drops, drops)
    end
    table.insert(answer, is_there and 1 or 0)
  end
  if charge ~= '' or had ~= '' then
    cell.seen = wall
    write(keys, cell, cell.drops)
  end
  return answer
end)
