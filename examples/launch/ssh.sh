#!/bin/bash
# Workers on a list of hosts, by SSH. Run by tests/launch/test_ssh.py, against a server on loopback.
#   ./ssh.sh HOSTS_FILE ENV_FILE [options of nightshift-worker]
# ENV_FILE goes there through stdin: no disk and no process list of a host has the addresses.
set -euo pipefail
hosts_file=${1:?a file with a host on each line} env_file=${2:?the file with the two addresses}
[[ $(stat -Lc %a "$env_file") == 600 ]] || { echo "chmod 600 $env_file: it has secrets" >&2; exit 2; }
start='set -euo pipefail; umask 077; mkdir -p ~/.nightshift-worker; cd ~/.nightshift-worker
while IFS= read -r line || [[ $line ]]; do [[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] && export "$line"; done
export NIGHTSHIFT_RUN_DIR=$PWD/run
is_up() { nightshift-worker started >said 2>&1 || grep -q "started: slot" said; }    # warm, or loading
is_up && { echo "runs already"; exit; }
nohup nightshift-worker "$@" >>worker.log 2>&1 </dev/null &
for _ in {1..60}; do
  is_up && { echo "pid $!, log $PWD/worker.log"; exit; }
  kill -0 $! 2>said || { tail -n 5 worker.log >&2; exit 1; }
  sleep 1
done
exit 1'
there=$(printf '%q ' bash -c "$start" nightshift-worker --leave-idle 10m "${@:3}")
failed=0
while read -r host; do
  echo -n "$host: "
  ssh -o BatchMode=yes -- "$host" "$there" < "$env_file" || { echo "not started"; failed=1; }
done < <(grep -v '^ *\(#\|$\)' "$hosts_file")
exit $failed
