# demo, test, lint, bench: each sets up its own virtual environment from nothing, once.
# PYTHON=python3.12 make test   uses another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
.DEFAULT_GOAL := help

.PHONY: help demo test lint bench clean

help:  ## this text
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY)  ## train a small CNN from a slow store through a small cache, under every recipe
	@$(BIN)/augury demo

test: $(READY) lint  ## lint, types, and all tests
	@$(BIN)/python -m pytest -n 2

lint: $(READY)  ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY)  ## every benchmark, with its JSON in bench/results/
	@command -v redis-server >/dev/null || { apt-get -qq update >/dev/null \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq install -y redis-server >/dev/null; }
	@for file in bench/[a-z]*.py; do \
		echo "== $$file" >&2; \
		$(BIN)/python $$file --json bench/results/$$(basename $$file .py).json || exit 1; \
	done

clean:  ## remove what make has made
	rm -rf $(VENV) augury-demo bench/results .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; install Python 3.11 or newer" >&2; exit 1; }
	@echo "setting up $(VENV) (once, a minute or two) ..." >&2
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
		rm -rf $(VENV); \
		echo "installing the venv module of $(PYTHON) ..." >&2; \
		apt-get -qq update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv >/dev/null \
		&& $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' \
		2>$(VENV)/setup.log || { cat $(VENV)/setup.log >&2; exit 1; }
	@touch $@
