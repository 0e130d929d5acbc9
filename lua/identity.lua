-- Says which server this is and what time it is there: what a connection is asked to show that it works.
--
-- keys       none
-- arguments  1 what the caller was told of this server when it connected
--            2 the operation's id
-- results    1 the operation's id
--            2 what the caller was told
--            3 the server's clock, whole seconds since 1970
--            4 the microseconds beyond them
--            5 the server's role: 'master' or 'slave'
--            6 the id of the history that it replicates
--            7 what it does when its memory is full: 'noeviction', or another policy
-- atomic     reads only; all of it is of one moment
redis.register_function{
  function_name = 'acequia_identity' .. version,
  flags = { 'no-writes', 'allow-stale' },
  callback = function(_, arguments)
    local time = redis.call('TIME')
    local replication = redis.call('INFO', 'replication')
    return {
      arguments[2],
      arguments[1],
      tonumber(time[1]),
      tonumber(time[2]),
      string.match(replication, 'role:(%a+)'),
      string.match(replication, 'master_replid:(%x+)'),
      string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)') or '',
    }
  end,
}
