#!/bin/bash
# A worker with all GPUs of one Docker host. Not run here: the option --gpus needs NVIDIA's container toolkit.
#   docker build --target worker-gpu --tag nightshift/worker-gpu:0.1.0 .      # once, in the clone
#   ./docker.sh ENV_FILE [options of nightshift-worker]
set -euo pipefail
env_file=${1:?the file with NIGHTSHIFT_DATABASE_URL and NIGHTSHIFT_BROKER_URL}
[[ $(stat -Lc %a "$env_file") == 600 ]] || { echo "chmod 600 $env_file: it has secrets" >&2; exit 2; }
arguments=(
  --detach --name nightshift-worker --restart no --pull never
  --env-file "$env_file"                          # read by the client: its values stand in no process list
  --gpus all --shm-size 8g                        # engines with tensor parallelism talk through /dev/shm
  --volume "${DATA_VOLUME:-nightshift-data}:/data" --volume "${CACHE_VOLUME:-nightshift-cache}:/cache"
  --cap-drop ALL --security-opt no-new-privileges
  --stop-timeout 100                              # docker stop: twice NIGHTSHIFT_DRAIN_SECONDS and 30 s, and a little
)
docker container rm nightshift-worker 2>/dev/null || true    # an ended one; one that runs is not removed
exec docker run "${arguments[@]}" "${IMAGE:-nightshift/worker-gpu:0.1.0}" --leave-idle 10m "${@:2}"
