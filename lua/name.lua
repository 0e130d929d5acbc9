-- The name of one charge, where all nodes of a region know it: crates/rights/src/pool/name.rs.
--
-- keys       see pool.lua; 2 the name, 3 a sorted set of the group's names by wall clock, in microseconds
-- arguments  6 whose claim it is about, as `node:process:call`
--            7 what is done: `claim`, `keep`, `leave` or `end`
--            8 when nobody asks for it any more: wall clock, in microseconds
--            9 the answer, where one is kept
-- results    3 how the name is then: `free`, `claimed`, `kept` or `ended`; 4 whose claim it is, or the answer that is kept
-- atomic     all of it
local NAMES_MAX = 256
local ANSWER_BYTES_MAX = 16384

register('acequia_name' .. version, function(keys, arguments)
  local group, wall = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local by, what, answer = arguments[6], arguments[7], arguments[9]
  local function drop(names)
    for _, name in ipairs(names) do
      redis.call('DEL', name)
      redis.call('ZREM', keys[3], name)
    end
  end
  -- At most as many as there are.
  drop(redis.call('ZRANGEBYSCORE', keys[3], '-inf', arguments[5]))

  local name = read(keys[2])
  if not name or name.generation ~= group.generation or wall >= name.drops then
    name = { standing = 'free', with = '' }
  end
  local is_own = name.standing == 'claimed' and name.with == by
  local standing, with
  if what == 'claim' and name.standing == 'free' then
    standing, with = 'claimed', by
  elseif what == 'keep' and is_own and #answer <= ANSWER_BYTES_MAX then
    standing, with = 'kept', answer
  elseif what == 'leave' and is_own then
    standing, with = 'free', ''
  elseif what == 'end' then
    standing, with = 'ended', ''
  end
  if standing == 'free' then
    drop({ keys[2] })
  elseif standing then
    local kept = { generation = group.generation, standing = standing, with = with, drops = tonumber(arguments[8]) }
    redis.call('SET', keys[2], cmsgpack.pack(kept))
    redis.call('ZADD', keys[3], arguments[8], keys[2])
    local above = redis.call('ZCARD', keys[3]) - NAMES_MAX
    if above > 0 then
      -- Those that go first, but for this one.
      local others = {}
      for _, other in ipairs(redis.call('ZRANGE', keys[3], 0, above)) do
        if other ~= keys[2] and #others < above then
          table.insert(others, other)
        end
      end
      drop(others)
    end
  end
  return { arguments[2], 'done', standing or name.standing, with or name.with }
end)
