# The commands. Each installs what it needs: .venv is made on first use, and again when its inputs change.
#
#   make train ARGS="--env CartPole-v1"     train (Pong without ARGS), resume with --name
#   make test                               what to run before a commit: four minutes on two cores, once set up
#   make test-all                           everything but nightly, as CI does: half an hour
#   make nightly                            learning curves, soaks, benchmarks, and whole runs that take minutes
#   make nightly-status                     when it last passed, and on which commit
#   make test-extras                        environments of other packages, of those that are installed
#   make golden                             what commands say and compose passes, written anew for a reviewer to compare
#   make mutants                            how many small faults in the product the tests notice
#   make release-check                      what a release has to pass but the upload
#   make hashes                             requirements.txt, from constraints.txt
#   make site                               the documentation as a site, in build/site; broken links are errors
#   make lint | bench | setup | clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
RELEASE := $(VENV)/.ready-release
HASHES := requirements.txt
DOCS := build/venv-docs
ARGS ?=
WORKERS ?= 4
UNIT_WORKERS ?= 3
RUNS ?= 2
# of all services together: a run that learns
SMOKE := tests/e2e/test_learning.py::test_ppo_learns_cartpole_from_actors_that_wait_for_each_update
# whole runs, a worker has a file at a time: long ones first, so that none of them is alone at the end
WHOLE := $(wildcard tests/e2e/test_*.py tests/chaos/test_*.py)
LONG := $(patsubst %,tests/%.py,e2e/test_compose e2e/test_run e2e/test_learning chaos/test_fuzz e2e/test_ranks \
	chaos/test_faults chaos/test_fused e2e/test_deterministic chaos/test_network e2e/test_slurm)
# one thread per core in each process would only be in the way, and without files of compiled code each of a thousand
# processes would compile again
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --dist loadfile

.PHONY: train test test-all short nightly nightly-status test-extras golden mutants lint bench site setup release-check hashes clean
.DEFAULT_GOAL := train

train: $(READY)
	@exec $(BIN)/beast train $(ARGS)

test: lint # these need the CPU; of those in `short`, many wait for sockets and processes
	$(PYTEST) -n $(UNIT_WORKERS) -m "not slow" --no-loadscope-reorder $(SMOKE) tests/unit $(ARGS)

test-all: $(DEV) # whole runs separately: beside them, tests of seconds would wait for minutes; lint needs one core
	$(MAKE) -j 2 lint short
	$(PYTEST) -n $(RUNS) -m "not nightly" --no-loadscope-reorder $(LONG) $(filter-out $(LONG),$(WHOLE)) $(ARGS)

short: $(DEV)
	$(PYTEST) -n $(WORKERS) tests/integration tests/unit $(ARGS)

nightly: nightly-status
	$(PYTEST) -n $(RUNS) -m nightly tests/nightly $(WHOLE) $(ARGS)
	$(if $(ARGS),,@$(BIN)/python -m tests.nightly.record --passed)

nightly-status: $(DEV)
	@$(BIN)/python -m tests.nightly.record

test-extras: $(DEV)
	$(PYTEST) tests/extras $(ARGS)

golden: $(DEV)
	REGENERATE=1 $(PYTEST) tests/unit/test_golden.py tests/unit/test_compose_files.py $(ARGS)

mutants: $(DEV)
	@exec $(BIN)/python -m zerobeast_tools.mutants $(ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	@exec $(BIN)/beast bench $(ARGS)

site: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.ready: pyproject.toml
	python3 -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --upgrade "pip>=25.1" # the first that knows dependency groups
	$(DOCS)/bin/pip install --quiet --group docs
	@touch $@

setup: $(DEV)

release-check: $(RELEASE)
	@exec $(BIN)/python -m zerobeast_tools.release $(ARGS)

hashes: $(RELEASE) # of all files of each version; not of torch, whose build is the machine's choice
	@printf '%s\n' '# The versions of constraints.txt with the hashes of their files, by `make hashes`. With a torch that suits the' \
		'# machine: pip install --require-hashes --no-deps -r requirements.txt' > $(HASHES).new
	@$(BIN)/uv pip compile constraints.txt --universal --python-version 3.11 --no-deps --generate-hashes --no-header \
		--no-annotate --no-emit-package torch --quiet >> $(HASHES).new || { rm $(HASHES).new; exit 1; }
	@mv $(HASHES).new $(HASHES)

$(READY): pyproject.toml tools/pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV) train
	@touch $@

$(DEV): pyproject.toml tools/pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV) all dev
	@touch $(READY) $@

$(RELEASE): pyproject.toml tools/pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV) all dev release
	@touch $(READY) $(DEV) $@

clean:
	rm -rf $(VENV) build tools/build *.egg-info src/*.egg-info tools/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find zerobeast common services tools tests -name __pycache__ -prune -exec rm -rf {} +
