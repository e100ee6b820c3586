#!/bin/sh
# The whole example on a running fleet: data, job, answers, score; what compose's `demo` runs.
#
#     sh examples/reviews/demo.sh /data
#
# The script works in the given folder, which workers must see under the same path. The script writes
# data and model there once. A job is identified by its files, so a second run finds the first job.
set -eu

here=$(CDPATH='' cd -- "$(dirname "$0")" && pwd)
cd "$1"
if [ ! -e examples/reviews/data/test.parquet ]; then
    mkdir -p examples/reviews/data
    cp -R "$here/model" "$here/job.yaml" examples/reviews/
    python "$here/make_reviews.py" --split test --rows 2000 --out examples/reviews/data/new.parquet
    mv examples/reviews/data/new.parquet examples/reviews/data/test.parquet
fi
nightshift submit examples/reviews/job.yaml
nightshift wait review-sentiment
nightshift sample review-sentiment -n 5
python "$here/score.py" examples/reviews/out
