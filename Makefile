# Each target does all its own set-up. PYTHON is the interpreter that makes the virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint benchmarks gpu-check clean

demo: $(INSTALLED)
	@docs/demo.sh $(BIN)

test: $(INSTALLED)
	$(BIN)/python -m pytest -q

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/benchmarks --benchmarks

# On a machine with a GPU: runs on the python3 it finds, installs nothing, ends within eight minutes.
gpu-check:
	$(PYTHON) tests/gpu/check.py --out $(or $(OUT),$(error name a folder for the results: make gpu-check OUT=folder))

clean:
	rm -rf $(VENV) demo build dist

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specplan needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
