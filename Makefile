# make serve    a demo model on the CPU, from nothing
# make test     everything the tests need, and the tests
# make check    what a change must pass: ruff, mypy, import-linter, pytest
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
export OMP_NUM_THREADS ?= 1

.PHONY: serve engine test check lint sanitize docs constraints clean

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/onebit/kernels/*.[ch] src/onebit/kernels/embed/csrc/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# A build of llama-server that serves the CPU, compiled once (about 5 minutes on two cores) unless one is found.
engine: $(VENV)/.installed
	$(BIN)/onebit engines build cpu --if-missing

serve: engine
	$(BIN)/onebit serve $(ARGS)

test: engine
	$(BIN)/onebit models pull demo
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# The C kernels under the address and undefined-behaviour sanitizers, and a fuzz run (about 5 minutes).
sanitize: $(VENV)/.installed
	scripts/sanitize $(BIN)/python

# Pages that are made from the code.
docs: $(VENV)/.installed
	$(BIN)/python docs/make_reference.py

constraints: $(VENV)/.installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt # any build of torch will do

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
