-- What the functions of pools share: integers, records, who answers, and whether a generation is known. It registers nothing itself.
--
-- The rules are those of crates/rights/src/pool, word by word. All numbers are integers below 2^53, which doubles count exactly; a
-- product that may be larger is only ever compared with a smaller bound.
--
-- All functions of pools are called alike:
-- keys       1 the group's record
--            2 the cell, where there is one
--            3 when cells may be dropped: a sorted set of their keys by wall clock, in microseconds; and a mark that it is the one that
--              was there when the group's pools began to remember
-- arguments  1 what the caller was told of this server when it connected: its identity
--            2 the operation's id
--            3 the fingerprint of the config, and after an `@` the allocation among regions that groups are part of, if they are
--            4 the generation that the caller knows, as `number:node:process:call`
--            5 the caller's wall clock when it sent the call, in microseconds
--            6 and more: each function's own
-- results    1 the operation's id
--            2 what became of it: `done`, `stale`, `late`, `full` or `unknown`; after `unknown` follow the generation that is
--              known here, how that is, and the one since which its pools remember; after `done` each function's own. It is 1 where
--              it grants, and 2 more where it is a first: none has granted before it, and all nodes that have told in it are new
-- errors     `CHANGED`: this is not the primary that the caller was told of; nothing was done
-- atomic     all of it
local POOL_MAX = 2 ^ 51
local TIME_MAX = 2 ^ 52
local WEIGHT_MAX = 2 ^ 50
local NODES_MAX = 64
local RATE_PARTS = 2 ^ 20
local NEVER = '0:0:0:0'
-- In the set of when cells may be dropped, for good. No cell has this key.
local MARK = '-'

-- Of Lua's own libraries nothing is there while functions are loaded: only when they run.
local function min(...)
  return math.min(...)
end

local function max(...)
  return math.max(...)
end

local function fmod(a, b)
  return math.fmod(a, b)
end

local function quotient(a, b)
  return (a - fmod(a, b)) / b
end

local function quotient_up(a, b)
  local rest = fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

-- a - b, or 0.
local function less(a, b)
  return a > b and a - b or 0
end

-- What units are of a pool that has `total`, which are held of one that has `of`: as large a part, rounded up, and at most POOL_MAX.
local function in_proportion(units, total, of)
  if units == 0 or total == of then
    return units
  elseif of == 0 then
    return POOL_MAX
  end
  local whole, rest = quotient(units, of), fmod(units, of)
  if whole > 0 and total > quotient(POOL_MAX, whole) then
    return POOL_MAX
  end
  -- What is left over is divided digit by digit: its product with the total may be above 2^53.
  local part, over, bit, digits = 0, 0, POOL_MAX, total
  while bit >= 1 do
    part, over = 2 * part, 2 * over
    if digits >= bit then
      digits, over = digits - bit, over + rest
    end
    part, over, bit = part + quotient(over, of), fmod(over, of), bit / 2
  end
  return min(whole * total + part + (over > 0 and 1 or 0), POOL_MAX)
end

-- Registers a function of pools. It does nothing where the server is not the primary any more that it was when the caller connected: one that
-- was replaced, copied the state of its successor and was promoted again is the same process, on the same connection, and has
-- forgotten what only it knew; what is kept in it was copied, too. The history that it replicates is another one then.
local function register(name, callback)
  redis.register_function(name, function(keys, arguments)
    local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
    if not history or string.sub(history, 1, 16) ~= string.match(arguments[1], '%.(%x+)$') then
      return redis.error_reply('CHANGED it is not the primary any more that it was')
    end
    return callback(keys, arguments)
  end)
end

local function read(key)
  local bytes = redis.call('GET', key)
  return bytes and cmsgpack.unpack(bytes) or nil
end

local function number_of(generation)
  return tonumber(string.match(generation, '^(%d+):'))
end

-- How a group is for whoever is answered by this server: its record, its generation, and whether that grants.
local function known(keys, arguments)
  local group = read(keys[1]) or { generation = NEVER, fresh = 0, burned = 0, asserted = {} }
  -- Records that were made before generations could go on say neither.
  group.since, group.before = group.since or group.generation, group.before or NEVER
  if group.place == arguments[1] and group.map == arguments[3] then
    return group, group.generation, group.grants
  end
  return group, NEVER, false
end

local function how_it_is(keys, arguments, status)
  local group, generation, grants = known(keys, arguments)
  if generation == NEVER then
    return { arguments[2], status, NEVER, 0, NEVER }
  end
  return { arguments[2], status, generation, (grants and 1 or 0) + (group.first and 2 or 0), group.since }
end

-- The group's record and the caller's wall clock, if the generation is the one that the caller knows.
local function context(keys, arguments)
  local group, generation = known(keys, arguments)
  if generation == arguments[4] and number_of(generation) > 0 then
    return group, tonumber(arguments[5])
  end
end

-- A cell that is known since its group's pools remember, as it is or new; what is known of earlier ones is forgotten. And whether
-- there is none.
local function cell_of(keys, group, new)
  local cell = read(keys[2])
  if cell and cell.generation == group.since then
    return cell, false
  end
  new.generation, new.nodes, new.due = group.since, {}, 0
  return new, not cell
end

-- Whether all cells are known by when they may be dropped, that were there since the group's pools remember: the set is the one it was.
local function has_mark(keys)
  return redis.call('ZSCORE', keys[3], MARK) ~= false
end

-- The same of a pool. One that is not there, though it is known when it may be dropped, was lost, by an eviction or by hand, and so may
-- others have been: nothing is known of its group any more. Nor is it where that set was lost, too.
local function pool_of(keys, group, new)
  local cell, is_absent = cell_of(keys, group, new)
  if is_absent and (redis.call('ZSCORE', keys[3], keys[2]) or not has_mark(keys)) then
    redis.call('ZREM', keys[3], keys[2])
    group.place = ''
    redis.call('SET', keys[1], cmsgpack.pack(group))
    return nil
  end
  return cell
end

-- Writes a cell, which may be dropped at a time.
local function write(keys, cell, due)
  -- Somewhat later, so that not every call has to say so.
  local later = min(due + max(quotient(less(due, cell.seen), 4), 1000000), TIME_MAX)
  if due > cell.due or later < cell.due - 3600000000 then
    cell.due = later
    redis.call('ZADD', keys[3], string.format('%.0f', cell.due), keys[2])
  end
  redis.call('SET', keys[2], cmsgpack.pack(cell))
end

-- Whether a lease ended so long ago that every call before the last one of its node would be late.
local function is_past(ends, cell, group, slack)
  return cell.at > ends + slack and cell.at > group.fresh
end

-- A node's record in a cell, if a call of it may count: else why not. Where there are too many, those that are over make room.
local function record_of(cell, node, process, call, is_over)
  local record = cell.nodes[node]
  if record then
    if process < record.boot or (process == record.boot and call <= record.call) then
      return nil, 'stale'
    end
    return record
  end
  local count, over = 0, {}
  for name, other in pairs(cell.nodes) do
    count = count + 1
    if is_over(other) then
      over[#over + 1] = name
    end
  end
  if count >= NODES_MAX then
    if #over == 0 then
      return nil, 'full'
    end
    for _, name in ipairs(over) do
      cell.nodes[name] = nil
    end
  end
  return { boot = 0, call = 0 }
end

-- Whether a call's time is behind the pool's for no good reason.
local function is_late(cell, group, wall, slack)
  return cell.at > wall + slack and cell.at > group.fresh
end
