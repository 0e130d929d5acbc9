# Sourced by the scripts beside it: Redis Clusters of six servers, three of them replicas, and what was started is stopped at the end.

for tool in redis-server redis-cli "$acequia"; do
  command -v "$tool" >/dev/null || { echo "there is no $tool: see the head of $0" >&2; exit 2; }
done

# `nodes` are those of them that are nodes.
processes=() nodes=()
stop() {
  trap - EXIT INT TERM
  # The last first: nodes give their callers what they have.
  for ((n = ${#processes[@]} - 1; n >= 0; n--)); do
    kill "${processes[n]}" 2>/dev/null || true
    wait "${processes[n]}" 2>/dev/null || true
  done
}
trap stop EXIT
trap 'exit 0' INT TERM

# Waits for the nodes. One that gives up ends all; one that somebody stopped is gone, and the others go on.
until_a_node_fails() {
  local status ended
  while [ ${#nodes[@]} -gt 0 ]; do
    status=0 ended=
    wait -n -p ended "${nodes[@]}" || status=$?
    if [ "$status" -gt 0 ] && [ "$status" -lt 128 ]; then
      echo "a node has given up, as it says above: all is stopped. What was written is in $folder" >&2
      exit 1
    fi
    for place in "${!nodes[@]}"; do
      if [ "${nodes[place]}" = "$ended" ]; then unset "nodes[place]"; fi
    done
  done
  echo "no node is left: all is stopped" >&2
}

until_it_is_so() {
  for ((tries = 0; tries < 600; tries++)); do
    "$@" && return
    sleep 0.1
  done
  echo "still not so after a minute: $*; see the logs in $folder" >&2
  exit 1
}
answers() { redis-cli -p "$1" ping 2>/dev/null | grep -q PONG; }
is_whole() {
  local port
  for ((port = $1; port < $1 + 6; port++)); do
    redis-cli -p "$port" cluster info 2>/dev/null | grep -q 'cluster_state:ok' || return 1
    redis-cli -p "$port" cluster info 2>/dev/null | grep -q 'cluster_size:3' || return 1
  done
}

# Six servers on the ports from $1 on. A server that was here before knows its cluster.
start_cluster() {
  local first=$1 port addresses=()
  for ((port = first; port < first + 6; port++)); do
    mkdir -p "$folder/redis-$port"
    redis-server --port "$port" --bind 127.0.0.1 --dir "$(cd "$folder/redis-$port" && pwd)" --save '' --appendonly no \
      --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 1000 \
      --cluster-require-full-coverage no --maxmemory-policy noeviction >"$folder/redis-$port/log" 2>&1 &
    processes+=($!) addresses+=("127.0.0.1:$port")
  done
  for ((port = first; port < first + 6; port++)); do until_it_is_so answers "$port"; done
  if ! redis-cli -p "$first" cluster info | grep -q 'cluster_known_nodes:6'; then
    redis-cli --cluster create "${addresses[@]}" --cluster-replicas 1 --cluster-yes >"$folder/cluster-$first.log"
  fi
  until_it_is_so is_whole "$first"
  echo "a Redis Cluster on ports $first to $((first + 5))"
}
