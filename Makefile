# `make demo` shows the product, `make check` checks a change, `make test` runs everything. `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# One thread for each process: with more threads than cores, the tests take up to four times as long.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

.PHONY: help setup demo check fast test coverage lint docs bench fuzz clean

help: ## list the commands
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## build .venv and install everything (skipped when nothing changed)

$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is required; choose one with: make PYTHON=/path/to/python"; exit 1; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing the pinned tools and libraries (one to three minutes the first time)"
	@$(PIP) --upgrade pip
	@$(PIP) torch
	@$(PIP) --editable '.[all,docs,dev]'
	@$(PIP) --no-deps openwakeword scikit-video
	@touch $(READY)
	@echo "==> $(VENV) is ready"

demo: $(READY) ## train a joint embedding on the built-in set and search with it
	@echo "==> crossclr demo"
	@$(BIN)/crossclr demo

check: $(READY) ## lint and the fast tests, at the same time: for every small change
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint fast

fast: $(READY)
	@echo "==> pytest, without the slow tests"
	@$(PYTEST) -m "not slow"

test: $(READY) ## all tests and the doctests of the package
	@echo "==> pytest"
	@$(PYTEST)

coverage: $(READY) ## all tests with branch coverage; fails below the limit in pyproject.toml
	@echo "==> pytest with coverage"
	@$(PYTEST) --cov --cov-report=term

lint: $(READY) ## ruff and mypy
	@echo "==> ruff check";  $(BIN)/ruff check .
	@echo "==> ruff format"; $(BIN)/ruff format --check .
	@echo "==> mypy";        $(BIN)/mypy

docs: $(READY) ## build the documentation into site/
	@echo "==> mkdocs build"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY) ## measure the benchmarks side by side and write them as JSON
	@echo "==> benchmarks"
	@$(BIN)/python -m benchmarks

fuzz: $(READY) ## all of the fuzzing suite (make test runs a small share)
	@echo "==> fuzz"
	@CROSSCLR_FUZZ=all $(PYTEST) --dist load tests/fuzz

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
