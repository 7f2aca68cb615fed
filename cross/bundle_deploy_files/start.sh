# Starts the agent and waits until it serves. $1: where it lives; $2: systemd or nohup; $3: its options.
# A bundle that was just unpacked lies in $1.new; an agent.yaml that came along is $1.yaml.
cd || exit 1
dir=$1 way=$2 options=$3
unit=$HOME/.config/systemd/user/fleet-agent.service

is_agent() { [ -n "$1" ] && grep -q start.py "/proc/$1/cmdline" 2>/dev/null; }

stop_old() {
  [ -f "$unit" ] && systemctl --user stop fleet-agent 2>/dev/null
  pid=$(cat "$dir/agent.pid" 2>/dev/null)
  if is_agent "$pid"; then
    kill "$pid"
    for _ in $(seq 100); do
      is_agent "$pid" || break
      sleep 0.2
    done
    is_agent "$pid" && kill -9 "$pid"
    echo "note: stopped the agent that ran"
  fi
  rm -f "$dir/agent.pid"
}

stop_old
if [ -d "$dir.new/fleet-agent" ]; then
  for kept in agent.yaml agent.log; do
    [ -f "$dir/$kept" ] && cp "$dir/$kept" "$dir.new/fleet-agent/"
  done
  rm -rf "$dir.old"
  [ -d "$dir" ] && mv "$dir" "$dir.old"
  mv "$dir.new/fleet-agent" "$dir" || exit 1
  rm -rf "$dir.new" "$dir.old"
fi
[ -f "$dir.yaml" ] && mv "$dir.yaml" "$dir/agent.yaml"
dir=$(cd "$dir" && pwd) || exit 1
problem=$("$dir/run" --check 2>&1) || { echo "$problem"; exit 0; }
echo "FLEET_AGENT_OPTIONS=$options" >"$dir/agent.env"
# A service does not have what a login has.
[ -n "$FLEET_PYTHON" ] && echo "FLEET_PYTHON=$FLEET_PYTHON" >>"$dir/agent.env"
[ -f "$dir/agent.log" ] && mv "$dir/agent.log" "$dir/agent.log.1"
: >"$dir/agent.log"

if [ "$way" = systemd ]; then
  mkdir -p "$(dirname "$unit")"
  sed -e "s|%h/fleet-agent|$dir|g" -e "s|^Restart=|StandardOutput=append:$dir/agent.log\nStandardError=inherit\nWorkingDirectory=$dir\nRestart=|" \
    "$dir/fleet-agent.service" >"$unit"
  systemctl --user daemon-reload
  systemctl --user enable --quiet fleet-agent
  systemctl --user restart fleet-agent || { echo "systemd did not start it"; exit 0; }
  loginctl enable-linger >/dev/null 2>&1 || echo "note: it ends when you log out; to change that: sudo loginctl enable-linger $USER"
  echo "note: it is a service: systemctl --user status fleet-agent"
else
  # The options were quoted for a shell; this is one.
  eval "set -- $options"
  cd "$dir" || exit 1
  nohup ./run "$@" >>agent.log 2>&1 </dev/null &
  echo $! >agent.pid
  echo "note: it runs until the board restarts; its log is $dir/agent.log"
fi
for _ in $(seq 240); do
  line=$(grep '^agent listening on ' "$dir/agent.log") && break
  if [ "$way" = nohup ]; then
    is_agent "$(cat "$dir/agent.pid")" || kill -0 "$(cat "$dir/agent.pid")" 2>/dev/null || break
  fi
  sleep 0.5
done
[ -n "$line" ] && echo "$line" && exit 0
tail -n 3 "$dir/agent.log"
