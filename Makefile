# The list of commands. Each sets itself up: .venv is made on first use and again when its inputs change.
#
#   make train ARGS="--env CartPole-v1"     train (Pong without ARGS), resume with --name
#   make test                               everything that CI runs
#   make lint | bench | setup | clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
ARGS ?=

.PHONY: train test lint bench setup clean
.DEFAULT_GOAL := train

train: $(READY)
	@exec $(BIN)/beast train $(ARGS)

test: lint
	$(BIN)/pytest $(ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	@exec $(BIN)/beast bench $(ARGS)

setup: $(DEV)

$(READY): pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV) train
	@touch $@

$(DEV): pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV) dev
	@touch $(READY) $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find zerobeast common services tools tests -name __pycache__ -prune -exec rm -rf {} +
