# Two commands on a fresh machine: `make demo` and `make test`. Each sets everything up in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
READY := $(VENV)/.ready

# The CPU build of torch comes from the environment's find-links where there are some, else from
# uv's own choice of backend.
ifneq ($(strip $(PIP_FIND_LINKS)),)
export UV_FIND_LINKS := $(strip $(PIP_FIND_LINKS))
TORCH :=
else
TORCH := --torch-backend cpu
endif

# Python keeps what it compiled: without that each process compiles all of vLLM and SQLAlchemy anew.
unexport PYTHONDONTWRITEBYTECODE

# Four processes keep two cores busy, since most tests wait for processes of their own.
TESTS := $(BIN)/python -m pytest --numprocesses 4 --dist loadscope

# How long the loops of `make test-busy` run at most.
BUSY_SECONDS ?= 2700

# What `make test-hammer` is told: `--parts 3`, `--only faults`.
HAMMER ?=

# Minutes of `make faults-long`.
MINUTES ?= 20

# Finished batches of `make bench-finished`; 10,000,000 take half an hour and 10 GB of disk.
BATCHES ?= 1000000

# Rounds of `make bench-engine`, and what else it is told; the first three are at every batch size.
ROUNDS ?= 7
ENGINE ?=

# What the benchmarks of the same names are told: `ARRANGED='--only systems'`, `PEERS='--rounds 5'`.
PEERS ?=
ARRANGED ?=
CONTROL ?=
PLANNING ?=
COLLECT ?=

# Size of the file that `make bench-serve` sends up and down.
BYTES ?= 256MB

# The repository's address on its host, which `make site` links files to; and the folder of the site, which
# is emptied first.
REPO ?=
SITE ?= $(VENV)/site

# How long the simulated fleet of `make bench-scale` works.
SECONDS ?= 120

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-busy test-hammer deploy-check faults faults-long faults-mutants without-wings bench bench-long bench-peers bench-engine bench-control \
	bench-ledger bench-claims bench-finished bench-planning bench-collect bench-memory bench-tail bench-long-tail bench-deadlines bench-scale bench-serve bench-console bench-arranged bench-pass bench-tokenizing bench-embed bench-row-cost bench-hold gpu-check lint docs site format clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY)  ## Install everything into .venv

$(READY): pyproject.toml constraints.txt uv-overrides.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(UV) || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt uv
	$(UV) pip install --quiet --python $(BIN)/python $(TORCH) \
		--constraint constraints.txt --override uv-overrides.txt --editable '.[cpu,transformers,embedded,dev]'
	touch $(READY)

demo: $(READY)  ## Run 2,000 held-out reviews through the whole fleet on one machine
	$(BIN)/python examples/reviews/make_reviews.py --split test --rows 2000 \
		--out examples/reviews/data/test.parquet
	$(BIN)/nightshift run examples/reviews/job.yaml
	$(BIN)/python examples/reviews/score.py examples/reviews/out

test: $(READY)  ## Pass the tests of what protects a row, a lease and a user's first hour, in minutes
	$(TESTS) -m 'not slow' tests

test-slow: $(READY) $(VENV)/.browser $(VENV)/.launch  ## Pass the other tests; those in a browser leave pictures in .venv/screenshots
	$(TESTS) -m slow tests

# Debian's Chromium, in .venv/chromium, where this machine has no browser.
$(VENV)/.browser: $(READY) tests/browser/chromium.py
	$(BIN)/python -m tests.browser.chromium
	touch $(VENV)/.browser

# Debian's Slurm and SSH server, in .venv/launch, where this machine has none.
$(VENV)/.launch: $(READY) tests/launch/programs.py
	$(BIN)/python -m tests.launch.programs
	touch $(VENV)/.launch

# Each loop looks many times a second whether this target still runs, and ends with it; at last it
# ends after BUSY_SECONDS.
test-busy: $(READY)  ## Pass `make test` while two loops keep two cores busy
	@for loop in 1 2; do timeout $(BUSY_SECONDS) sh -c 'while kill -0 '$$$$'; do \
		count=0; while [ $$count -lt 99999 ]; do count=$$((count + 1)); done; done' 2>/dev/null & done; \
	$(MAKE) test

# What is kept lies in .venv/hammer, and the same command goes on there; remove the folder to begin anew.
test-hammer: $(READY) $(VENV)/.browser $(VENV)/.launch  ## See every test three times and the restless ones ten times, under changing load, in parts that go on; HAMMER='--parts 3'
	$(BIN)/python -m tests.hammer $(HAMMER)

deploy-check: $(READY)  ## Check Dockerfile, compose file and manifests, without a container engine
	$(BIN)/python -m pytest tests/deploy

faults: $(READY)  ## Pass the fault suite
	$(BIN)/python -m pytest tests/faults

faults-long: $(READY)  ## Pass the fault suite with random kills for MINUTES=20
	$(BIN)/python -m pytest tests/faults --minutes $(MINUTES) --timeout 0 -o faulthandler_timeout=0

faults-mutants: $(READY)  ## See the fault suite fail without each protection
	$(BIN)/python -m tests.faults.mutants

without-wings: $(READY)  ## See `make test` pass without judge, tune, archive and serve, one after the other
	$(BIN)/python -m tests.without_wing

# Sizes at which the comparisons and the ledger fit into an hour; the targets themselves have larger ones.
bench: ROUNDS = 3
bench: ENGINE = --others 0 --size 512
bench: ARRANGED = --rounds 1
bench: CONTROL = --batches 5000
bench: PLANNING = --rounds 3
bench: COLLECT = --rounds 3
bench: bench-peers bench-engine bench-arranged bench-control bench-ledger bench-planning bench-collect bench-embed bench-row-cost  ## Measure what compares, and the ledger, and write docs/performance.md: about an hour, on a quiet machine
	$(BIN)/python -m benchmarks.report

bench-long: bench-peers bench-engine bench-arranged bench-pass bench-control bench-ledger bench-claims bench-finished bench-planning bench-collect bench-memory bench-tail bench-long-tail bench-deadlines bench-scale bench-serve bench-console bench-tokenizing bench-embed bench-row-cost bench-hold  ## Measure everything at its full size: about four hours
	$(BIN)/python -m benchmarks.report

# RAY_PYTHON names an interpreter that has vLLM and `ray[data]`; without it Ray is left out.
bench-peers: $(READY)  ## Measure the fleet beside raw vLLM, vllm run-batch and Ray Data LLM, and draw the picture; RAY_PYTHON=/path/to/python
	$(BIN)/python -m benchmarks.peers $(PEERS)

gpu-check: $(READY)  ## Measure the transformers engine beside the library's own loop, on the GPU where there is one
	$(BIN)/python -m benchmarks.gpu_check

bench-arranged: $(READY)  ## Measure rows that share something: raw vLLM beside the fleet, eight datasets
	$(BIN)/python -m benchmarks.arranged $(ARRANGED)

bench-pass: $(READY)  ## Measure the memory and the time of the pass that sorts rows
	$(BIN)/python -m benchmarks.arranged.pass_memory
	$(BIN)/python -m benchmarks.arranged.pass_memory --rows 300000 --row-bytes 8000

bench-tokenizing: $(READY)  ## Measure tokenizing in threads beside 1, 2 and 4 processes, with an engine that answers at once
	$(BIN)/python -m benchmarks.tokenizing

bench-embed: $(READY)  ## Measure embed and classify on CPU, short and mixed rows: the fleet beside the library's better loop
	$(BIN)/python -m benchmarks.embed

bench-row-cost: $(READY)  ## Measure the CPU of a row in one child, through a function and through vLLM with an engine that answers at once
	$(BIN)/python -m benchmarks.row_cost

bench-hold: $(READY)  ## Measure answers that are held to their form always, beside those whose first try is free
	$(BIN)/python -m benchmarks.hold

bench-engine: $(READY)  ## Measure the fleet beside raw vLLM and a naive loop, ROUNDS=7
	$(BIN)/python -m benchmarks.engine --rounds $(ROUNDS) $(ENGINE)

bench-control: $(READY)  ## Measure one-row batches through claim, part and commit
	$(BIN)/python -m benchmarks.control $(CONTROL)

bench-ledger: $(READY)  ## Measure the ledger with a million batches in it
	$(BIN)/python -m benchmarks.ledger

bench-claims: $(READY)  ## Measure claims on one queue by 1 to 64 claimants
	$(BIN)/python -m benchmarks.ledger.claimants

bench-finished: $(READY)  ## Measure claims beside BATCHES=1000000 finished ones, and a job that leaves the ledger
	$(BIN)/python -m benchmarks.ledger.finished --batches $(BATCHES)

bench-planning: $(READY)  ## Measure planning: 100 M Parquet rows, JSONL beside wc -l
	$(BIN)/python -m benchmarks.planning $(PLANNING)

bench-collect: $(READY)  ## Measure collect beside pyarrow's bare copy of the parts
	$(BIN)/python -m benchmarks.collect $(COLLECT)

bench-memory: $(READY)  ## Watch a worker's memory over 1,000 batches of small and large datasets
	$(BIN)/python -m benchmarks.memory

bench-tail: $(READY)  ## Measure how evenly four children end a job
	$(BIN)/python -m benchmarks.tail

bench-long-tail: $(READY)  ## Measure the end of jobs whose rows take very different times, with handovers and without
	$(BIN)/python -m benchmarks.long_tail

bench-deadlines: $(READY)  ## Simulate random nights with deadlines and spot losses, beside two plain policies
	$(BIN)/python -m benchmarks.deadlines

bench-scale: $(READY)  ## Measure Postgres under 1,000 simulated children, SECONDS=120
	$(BIN)/python -m benchmarks.scale --seconds $(SECONDS)

bench-serve: $(READY)  ## Measure the HTTP API beside a bare server, with a file of BYTES=256MB
	$(BIN)/python -m benchmarks.serve --bytes $(BYTES)

lint: $(READY)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-console: $(READY)  ## Measure the console's pages over a job of a million batches, and 200 open pages
	$(BIN)/python -m benchmarks.console

docs: $(READY)  ## Write the tables of docs/spec.md, settings.md and tables.md, the reference of docs/python.md and the schemas of specs from the code
	$(BIN)/python docs/spec_tables.py
	$(BIN)/python docs/settings_tables.py
	$(BIN)/python docs/types_table.py
	$(BIN)/python docs/python_reference.py
	$(BIN)/python docs/spec_schemas.py

# Without the variable Material tells of its end of life, which docs/decisions/0044 is about. MkDocs counts no
# warnings, and so is not strict, where it is told to be quiet.
site: $(READY)  ## Build the docs as a site with search, in .venv/site; REPO=https://... is the repository's address for links
	REPO='$(REPO)' NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir '$(abspath $(SITE))'
	@echo "the site is in $(SITE): $(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE)"

format: $(READY)  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the virtual environment and the demo's output
	rm -rf $(VENV) examples/reviews/out examples/reviews/data
