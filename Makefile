# The list of commands. Each sets itself up: .venv is made on first use and again when its inputs change.
#
#   make train ARGS="--env CartPole-v1"     train (Pong without ARGS), resume with --name
#   make test                               everything that CI runs
#   make lint | bench | setup | clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.PHONY: train test lint bench setup clean
.DEFAULT_GOAL := train

train: $(READY)
	@exec $(BIN)/beast train $(ARGS)

test: lint
	$(BIN)/pytest $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	@exec $(BIN)/beast bench $(ARGS)

setup: $(READY)

$(READY): pyproject.toml constraints.txt deploy/setup
	@deploy/setup $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find common services deploy tests -name __pycache__ -prune -exec rm -rf {} +
