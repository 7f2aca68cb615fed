# Tells what this board is, a line for each fact. $1: where the agent lives or will live.
cd || exit 1
dir=$1
echo "machine=$(uname -m)"
echo "bits=$(getconf LONG_BIT 2>/dev/null)"
echo "libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "home=$HOME"
for python in $FLEET_PYTHON python3.11 python3 python3.13 python3.12; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 11) else "")' 2>/dev/null)
  [ -n "$version" ] && break
done
echo "python=$version"
for file in /proc/device-tree/model /sys/firmware/devicetree/base/model; do
  [ -r "$file" ] && echo "model=$(tr -d '\0' <"$file")" && break
done
parent=$(dirname "$dir")
while [ ! -d "$parent" ]; do parent=$(dirname "$parent"); done
echo "free_kb=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')"
systemctl --user show-environment >/dev/null 2>&1 && echo "systemd=yes"
command -v xz >/dev/null 2>&1 && echo "xz=yes"
echo "digest=$(sed -n 's/.*"digest": "\(.*\)".*/\1/p' "$dir/bundle.json" 2>/dev/null)"
sed -n 's/^FLEET_AGENT_OPTIONS=/options=/p' "$dir/agent.env" 2>/dev/null
if [ -e "$dir" ] && [ ! -e "$dir/start.py" ] && [ -n "$(ls -A "$dir" 2>/dev/null)" ]; then
  echo "foreign=yes"
fi
pid=$(cat "$dir/agent.pid" 2>/dev/null)
if [ -n "$pid" ] && grep -q start.py "/proc/$pid/cmdline" 2>/dev/null; then
  echo "running=yes"
elif systemctl --user is-active --quiet fleet-agent 2>/dev/null; then
  echo "running=yes"
fi
echo "address=$(echo "$SSH_CONNECTION" | cut -d' ' -f3)"
