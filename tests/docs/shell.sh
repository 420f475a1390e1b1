# begin PORT COMMAND …: start what runs until it is stopped, wait until it answers, stop it when the script ends
begin() {
  local port=$1
  shift
  "$@" &
  local began=$!
  trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT
  for _ in $(seq 3000); do
    if (: </dev/tcp/127.0.0.1/"$port") 2>/dev/null; then return 0; fi
    kill -0 "$began" 2>/dev/null || return 1
    sleep 0.2
  done
  return 1
}

# fresh COMMAND …: run it with a home and a store of its own
fresh() {
  local home
  home=$(mktemp -d "$HOME/fresh.XXXXXX")
  CPB_HOME=$home/data MLFLOW_TRACKING_URI=sqlite:///$home/mlflow.db "$@"
}
