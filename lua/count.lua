-- Counts hits in cells' windows, for nodes that keep no counts of their own.
--
-- keys       the cells, each in its open window
-- arguments  1 what the caller was told of this server when it connected
--            2 the operation's id
--            then of each cell: how many hits are counted (0 for a look, below 0 to give back); how long the count is kept, in ms
-- results    1 the operation's id; then of each cell, how many hits it has
-- atomic     all of it
local COUNT_MAX = 2 ^ 52

redis.register_function('acequia_count' .. version, function(keys, arguments)
  local answer = { arguments[2] }
  for place, key in ipairs(keys) do
    local hits, kept = arguments[2 * place + 1], arguments[2 * place + 2]
    local number, count = tonumber(hits), nil
    if number > 0 then
      count = redis.call('INCRBY', key, hits)
      if count == number then
        redis.call('PEXPIRE', key, kept)
      elseif count > COUNT_MAX then
        count = COUNT_MAX
        redis.call('SET', key, string.format('%.0f', count), 'KEEPTTL')
      end
    else
      count = tonumber(redis.call('GET', key) or '0')
      if number < 0 and count > 0 then
        count = math.max(0, count + number)
        redis.call('SET', key, string.format('%.0f', count), 'KEEPTTL')
      end
    end
    table.insert(answer, count)
  end
  return answer
end)
