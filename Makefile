# One command for each thing a person does here; each does its own set-up. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# More arguments for up, bench, reliability and pytest: make up ARGS="--for 30 --json"
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help install debian up test test-vllm lint format bench reliability verdict alert-drills board-drill board-picture explorer-picture

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create .venv with everything the other targets need

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else f"kvledger needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}: make PYTHON=/path/to/python")'
	@echo "installing into .venv (a few minutes, most of them torch)" >&2
	@$(PYTHON) -m venv .venv >&2
	@$(BIN)/python -m pip install --quiet --upgrade pip >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all]' --group dev >&2
	@$(BIN)/python -m kvledger_engine.compiled
	@touch $@

# What checks the exposed page, the rules, the alerts' way to a person and the explorer's pages. Debian packages; RUNLEVEL=1
# keeps their services from being started.
TOOLS := promtool amtool curl chromium
PACKAGES := prometheus prometheus-alertmanager curl chromium
debian:
	@if ! command -v $(TOOLS) | awk 'END { exit NR < $(words $(TOOLS)) }' && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $(PACKAGES) (Debian packages)"; \
	    export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive; \
	    get() { apt-get install -y --no-install-recommends $(PACKAGES); }; \
	    { get || { apt-get update && get; }; } >.venv/debian.log 2>&1 || tail -3 .venv/debian.log; \
	fi
	@for tool in $(TOOLS); do command -v $$tool >/dev/null || \
	    echo "skipped: $$tool cannot be had here; the tests that need it are skipped and counted"; done

up: $(INSTALLED) ## start an engine, its agent, a load, explorer, Prometheus and Alertmanager; say what to open
	@$(BIN)/kvledger up $(ARGS)

test: $(INSTALLED) debian lint ## what CI checks first: format, lint, types, import rules, tests
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# In vLLM's environment, whose libraries warn of much that is not ours.
test-vllm: ## the plugin against the real vLLM, in an environment of its own (3.1 GB, made once)
	@python="$$(bench/vllm-env)" && PYTHONPATH=engine:agent:. "$$python" -m pytest tests/vllm \
	    -o filterwarnings=default -o timeout=1800 $(ARGS)

lint: $(INSTALLED) ## format, lint, types and import rules, without the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy engine agent dashboards alerts tests $(if $(wildcard bench/*.py),bench)
	$(BIN)/lint-imports

format: $(INSTALLED) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## measure, write the committed table, exit 1 on a missed bar (minutes)
	$(BIN)/python -m bench $(ARGS)

reliability: $(INSTALLED) ## the long drills; writes docs/reliability.md
	$(BIN)/python -m tests.reliability $(ARGS)

verdict: $(INSTALLED) ## every scenario of the verdict, live and twice; writes docs/verdict.md (a quarter of an hour)
	$(BIN)/python -m tests.verdict $(ARGS)

board-drill: $(INSTALLED) debian ## every query of the boards in every scenario of the verdict (minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m drill tests/dashboards $(ARGS)

alert-drills: $(INSTALLED) debian ## every alert on a real Prometheus and Alertmanager: it fires, is told or explained, resolves
	$(BIN)/python -m pytest -m drill tests/alerts/test_live_drills.py $(ARGS)

explorer-picture: $(INSTALLED) debian ## draw docs/images/explorer-*.png anew; needs chromium (minutes)
	$(BIN)/python -m dashboards.render.explorer $(ARGS)

board-picture: $(INSTALLED) debian ## draw docs/images/board-*.png anew; needs npm and chromium (minutes)
	$(BIN)/python -m dashboards.render.picture $(ARGS)
