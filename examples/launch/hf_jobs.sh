#!/bin/bash
# A worker as a Hugging Face Job. Not run here: it needs an account that pays for Jobs.
#   IMAGE=… ./hf_jobs.sh ENV_FILE [options of nightshift-worker]
# IMAGE is the image worker-gpu of the Dockerfile, which you have built and pushed where Hugging Face can pull it.
set -euo pipefail
env_file=${1:?the file with NIGHTSHIFT_DATABASE_URL and NIGHTSHIFT_BROKER_URL}
[[ $(stat -Lc %a "$env_file") == 600 ]] || { echo "chmod 600 $env_file: it has secrets" >&2; exit 2; }
# --secrets-file: the values are stored encrypted, and are in neither a process list nor the job's description.
exec hf jobs run --detach --flavor "${FLAVOR:-l40sx1}" --timeout "${TIMEOUT:-8h}" \
  --secrets-file "$env_file" "${IMAGE:?the image that you pushed}" \
  tini nightshift-worker --leave-idle 10m "${@:2}"
