# make serve    a demo model on the CPU, from nothing
# make test     everything the tests need, and the tests; EXTRAS=dev,torch: those of the LoRA merge against torch, too
# make check    what a change must pass: ruff, mypy, import-linter, pytest; wants EXTRAS=dev,torch
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
ARGS ?=
KERNELS := $(wildcard src/onebit/kernels/*.[ch] src/onebit/kernels/embed/csrc/*.[ch])
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
export OMP_NUM_THREADS ?= 1

.PHONY: serve engine test check lint sanitize docs constraints clean

$(VENV)/.package: pyproject.toml setup.py constraints.txt $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) .
	touch $@

$(VENV)/.installed: $(VENV)/.package
	$(PIP) '.[$(EXTRAS)]'
	touch $@

# A build of llama-server that serves the CPU, compiled once (about 5 minutes on two cores) unless one is found.
engine: $(VENV)/.package
	$(BIN)/onebit engines build cpu --if-missing

serve: engine
	$(BIN)/onebit serve $(ARGS)

test: $(VENV)/.installed engine
	$(BIN)/onebit models pull demo
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

# The C kernels under the address and undefined-behaviour sanitizers, and fuzz runs (about 5 minutes).
sanitize: $(VENV)/.installed
	scripts/sanitize $(BIN)/python

# Pages that are made from the code.
docs: $(VENV)/.installed
	$(BIN)/python docs/make_reference.py

constraints: $(VENV)/.installed
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt # any build of torch will do

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
