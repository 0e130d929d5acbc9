-- Drops cells that say no more than absent ones.
--
-- keys       see pool.lua; no cell
-- arguments  6 how many cells at most
-- results    3 how many were dropped
-- atomic     all of it
register('acequia_sweep' .. version, function(keys, arguments)
  local group = context(keys, arguments)
  if not group then
    return how_it_is(keys, arguments, 'unknown')
  end
  local over = redis.call('ZRANGEBYSCORE', keys[3], '-inf', arguments[5], 'LIMIT', 0, tonumber(arguments[6]))
  for _, cell in ipairs(over) do
    redis.call('DEL', cell)
    redis.call('ZREM', keys[3], cell)
  end
  return { arguments[2], 'done', #over }
end)
