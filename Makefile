# Everything a newcomer, a reviewer and CI run. Each target works from a fresh clone with python3 (3.11 or newer, with
# venv and pip) and nothing else prepared: it makes .venv, and `test` and `bench` also fetch the real programs and jars
# they run beside our own code. What cannot be fetched is told in one line and its tests are skipped with that reason.

# When make was called: the demo tells how long a first result takes from there.
SINCE := $(shell date +%s)
PYTHON ?= python3
BIN := .venv/bin
# Tests run in parallel, in twice as many workers as there are cores, since half of their time they wait for servers; a
# machine with many cores gains little beyond six.
# loadgroup: tests that share one expensive server carry @pytest.mark.xdist_group and stay in one worker, so that the
# server starts once; all the others go to whichever worker is free. tests/conftest.py says what begins first.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(6, 2 * (os.cpu_count() or 1)))')
PYTEST_OPTIONS ?= --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder
# A room (TEST=log) or paths; nothing is everything.
TEST ?=
TESTED = $(foreach name,$(TEST),$(if $(wildcard tests/$(name)),tests/$(name),$(name)))
# A soak fuzzes the broker with this many frames.
SOAK_FRAMES ?= 1000000
DEMO ?=
# mypy stops at a folder without modules, so it is given those that have some.
TYPED := $(foreach root,src tests tools benchmarks examples,$(if $(wildcard $(root)/*.py $(root)/*/*.py),$(root)))
# All of them run even when one fails, so that one run shows everything there is to fix.
CHECKS := "ruff check" "ruff format --check" "mypy $(TYPED)" "python -m pytest --quiet tests/test_tidy.py" \
	"mkdocs build --strict"

# Where the environment says that no compiled Python is to be kept, each of the hundreds of processes that the tests and
# the demo start would compile all of Penstock again: a third of its start. Empty is as good as unset.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help demo test soak check bench docs parts format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/demo ## all of it at work for two minutes, with parts killed, and counted (DEMO="--stay" goes on)
	PENSTOCK_CACHE="$${PENSTOCK_CACHE:-$(wildcard $(CURDIR)/.cache)}" \
		$(BIN)/python -m penstock.cli demo --since $(SINCE) $(DEMO)

test: .venv/dev parts ## every room, with samples of what takes long (TEST=log for all of one room, or TEST=path)
	PENSTOCK_EVERY_ROOM=$(if $(TEST),,1) $(BIN)/python -m tools.run_tests $(PYTEST_OPTIONS) \
		$(or $(TESTED),--ignore tests/test_tidy.py)

soak: .venv/dev parts ## every test with every case: whole kill matrices, many more kills and examples; a night's work
	PENSTOCK_SOAK=1 PENSTOCK_FUZZ_FRAMES=$(SOAK_FRAMES) \
		$(BIN)/python -m tools.run_tests $(PYTEST_OPTIONS) $(TESTED)

check: .venv/dev ## lint, format, types, habits, docs
	@failed=0; for step in $(CHECKS); do \
		printf '%s\n' "$$step"; $(BIN)/$$step || failed=1; \
	done; exit $$failed

bench: .venv/dev parts ## every benchmark, both sides and the ratio, to benchmarks/results/
	$(BIN)/python -m benchmarks

docs: .venv/dev ## the documentation, built into site/
	$(BIN)/mkdocs build --strict

parts: .venv/dev ## fetch the real parts: kcat, kafkajs, Apache Kafka, Spark's Kafka connector, Quix Streams
	@$(BIN)/python -m tools.set_up

format: .venv/dev ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove what the other targets made, the cache of real parts included
	rm -rf .venv .cache site dist penstock-demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are files in .venv: when pyproject.toml changes, make sees it is newer and installs again.
.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv .venv

.venv/core: pyproject.toml tools/install.py | .venv/bin/python
	$(BIN)/python -m tools.install core
	@touch $@

# Spark is a large package: where it cannot be had, the demo runs without it, and this is tried again next time.
.venv/demo: pyproject.toml tools/install.py | .venv/bin/python
	@if $(BIN)/python -m tools.install demo; then touch $@; else \
		echo "not everything could be installed: the demo goes on with the core alone"; \
		$(BIN)/python -m tools.install core; fi

.venv/dev: pyproject.toml tools/install.py | .venv/core
	$(BIN)/python -m tools.install dev
	@touch $@
