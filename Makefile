# Targets create .venv and install the package if needed.
# make demo        train on rendered products and write an HTML report to build/demo
# make test        run the fast tests on all cores
# make test-slow   run the slow tests: killed runs, whole experiments, torch.compile
# make check       check format, lint and types and run all tests; run before a commit
# make docs        build the documentation site into build/site
# make bench       run the benchmarks (about 20 minutes on two cores) and write benchmarks/results/bench.json
# make bench-full  also run the long ones (about an hour; CUB-200-2011 from LIFTEDSTRUCT_DATA) and write bench-full.json

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow check docs bench bench-full format clean

demo: $(VENV)/installed
	$(BIN)/liftedstruct demo --out build/demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test test-slow

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/suite.py
	$(BIN)/python docs/tables.py

bench-full: $(VENV)/installed-dev
	$(BIN)/python benchmarks/suite.py --full
	$(BIN)/python docs/tables.py

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "liftedstruct needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# constraints.txt pins the tested versions; an installed torch that satisfies them is kept
$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[figures,pretrained,serve]'
	touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/installed
