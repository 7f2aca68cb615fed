# Starts the agent and waits until it serves. $1: where it lives; $2: systemd or nohup; $3: its options.
# A bundle that was just unpacked lies in $1.new; an agent.yaml that came along is $1.yaml, a join token $1.token.
# What was there before waits in $1.old; when the new agent does not serve, it is put back and started again.

is_agent() { [ -n "$1" ] && grep -q start.py "/proc/$1/cmdline" 2>/dev/null; }

stop_agent() {
  [ -f "$unit" ] && systemctl --user stop fleet-agent 2>/dev/null
  pid=$(cat "$dir/agent.pid" 2>/dev/null)
  if is_agent "$pid"; then
    kill "$pid"
    for _ in $(seq 100); do
      is_agent "$pid" || break
      sleep 0.2
    done
    is_agent "$pid" && kill -9 "$pid"
  fi
  rm -f "$dir/agent.pid"
}

put_new() {
  if [ -d "$dir.new/fleet-agent" ]; then
    for kept in agent.yaml agent.log; do
      [ -f "$dir/$kept" ] && cp "$dir/$kept" "$dir.new/fleet-agent/"
    done
    rmdir "$dir" 2>/dev/null # nothing to go back to
    [ -d "$dir" ] && mv "$dir" "$dir.old"
    mv "$dir.new/fleet-agent" "$dir" || exit 1
    rm -rf "$dir.new"
  else
    mkdir "$dir.old"
    for kept in agent.yaml agent.env; do
      [ -f "$dir/$kept" ] && cp "$dir/$kept" "$dir.old/"
    done
  fi
  [ -f "$dir.yaml" ] && mv "$dir.yaml" "$dir/agent.yaml"
  [ -f "$dir.token" ] && mv "$dir.token" "$dir/join.token"
  # Not by echo, which takes a backslash for its own.
  printf 'FLEET_AGENT_OPTIONS=%s\n' "$options" >"$dir/agent.env"
  # A service does not have what a login has.
  [ -n "$FLEET_PYTHON" ] && echo "FLEET_PYTHON=$FLEET_PYTHON" >>"$dir/agent.env"
}

put_back() {
  if [ -e "$dir.old/start.py" ]; then
    rm -rf "$dir" && mv "$dir.old" "$dir"
    return
  fi
  # It was the same bundle, with other options or another agent.yaml.
  for kept in agent.yaml agent.env; do
    rm -f "$dir/$kept"
    [ -f "$dir.old/$kept" ] && mv "$dir.old/$kept" "$dir/"
  done
  rm -rf "$dir.old"
}

launch() {
  [ -f "$dir/agent.log" ] && mv "$dir/agent.log" "$dir/agent.log.1"
  : >"$dir/agent.log"
  rm -f "$ready"
  if [ "$way" = systemd ]; then
    mkdir -p "$(dirname "$unit")"
    sed -e "s|%h/fleet-agent|$dir|g" -e "s|^Restart=|StandardOutput=append:$dir/agent.log\nStandardError=inherit\nWorkingDirectory=$dir\nEnvironment=AGENT_READY_FILE=$ready\nRestart=|" \
      "$dir/fleet-agent.service" >"$unit"
    systemctl --user daemon-reload
    systemctl --user enable --quiet fleet-agent
    systemctl --user restart fleet-agent || echo "systemd did not start it" >>"$dir/agent.log"
  else
    [ -f "$unit" ] && systemctl --user disable --quiet fleet-agent 2>/dev/null
    # The options were quoted for a shell; this is one.
    eval "set -- $(sed -n 's/^FLEET_AGENT_OPTIONS=//p' "$dir/agent.env")"
    cd "$dir" || exit 1
    AGENT_READY_FILE=$ready nohup ./run "$@" >>agent.log 2>&1 </dev/null &
    echo $! >agent.pid
  fi
}

# $1: for how many half seconds.
serves() {
  for _ in $(seq "$1"); do
    [ -e "$ready" ] && return 0
    if [ "$way" = nohup ]; then
      is_agent "$(cat "$dir/agent.pid")" || kill -0 "$(cat "$dir/agent.pid")" 2>/dev/null || return 1
    fi
    sleep 0.5
  done
  return 1
}

tell_how() {
  [ -n "$had_agent" ] && echo "note: stopped the agent that ran"
  if [ "$way" = nohup ]; then
    echo "note: it runs until the board restarts; its log is $dir/agent.log"
    return
  fi
  loginctl enable-linger >/dev/null 2>&1 || echo "note: it ends when you log out; to change that: sudo loginctl enable-linger $USER"
  echo "note: it is a service: systemctl --user status fleet-agent"
}

go_back() {
  tail -n 3 "$dir/agent.log"
  [ -d "$dir.old" ] || return
  stop_agent
  put_back
  if [ -z "$had_agent" ]; then
    echo "back: what was there before is back"
    return
  fi
  way=$had_agent
  launch
  if serves 120; then
    echo "back: the agent that ran before runs again"
  else
    echo "back: what was there before is back, but does not report that it serves either"
  fi
}

# A function is read to its end before it runs: a connection that breaks leaves no half of it.
main() {
  cd || exit 1
  dir=$1 way=$2 options=$3
  ready=$dir/agent.ready # written by the agent: its address and devices
  unit=$HOME/.config/systemd/user/fleet-agent.service
  # An earlier start may have been cut off between two moves.
  [ ! -e "$dir" ] && [ -e "$dir.old/start.py" ] && mv "$dir.old" "$dir"
  rm -rf "$dir.old"
  next=$dir
  [ -d "$dir.new/fleet-agent" ] && next=$dir.new/fleet-agent
  if ! problem=$("$next/run" --check 2>&1); then
    rm -rf "$dir.new" "$dir.yaml" "$dir.token"
    echo "$problem"
    [ -e "$dir/start.py" ] && echo "back: what is there was left as it is"
    exit 0
  fi
  # Empty, or in which way it ran: a service that went back to be none would be gone with the next restart.
  had_agent=
  if systemctl --user is-active --quiet fleet-agent 2>/dev/null; then
    had_agent=systemd
  elif is_agent "$(cat "$dir/agent.pid" 2>/dev/null)"; then
    had_agent=nohup
  fi
  stop_agent
  put_new
  launch
  if ! serves 240; then
    go_back
    exit 0
  fi
  rm -rf "$dir.old"
  tell_how
  cat "$ready"
  exit 0
}

main "$@"
