# Each target builds the virtual environment it needs, once; `make clean` throws it away.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# A worker for each core, which takes over waiting tests of slower ones; each has one thread (conftest.py).
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

KILLS  ?= 1000
INPUTS ?= 1000000
FUZZ   ?= 20000
SEED   ?= 0
JOBS   ?= 2

.PHONY: help demo test test-all soak lint format perf clean

help:
	@echo "make demo   the synthetic study: table, checks and figure in a bit over a minute"
	@echo "make test   lint, type check and the test suite"
	@echo "make test-all   the slow and the browser tests too (some 15 minutes)"
	@echo "make soak   hours of damaged input and killed runs (FUZZ=20000 INPUTS=1000000 KILLS=1000 SEED=0 JOBS=2)"
	@echo "make lint   ruff, pyright and the import rules only"
	@echo "make perf   speed and memory, as ratios taken in one run"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("longtail needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python studies/tools/demo.py

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m 'not gpu'

soak: $(STAMP)
	LONGTAIL_FUZZ=$(FUZZ) $(PYTEST) tests/fuzz
	$(BIN)/python tests/fuzz/input_soak.py --inputs $(INPUTS) --jobs $(JOBS) --seed $(SEED) --out results/soak/inputs.json
	$(BIN)/python tests/fuzz/kill_soak.py --kills $(KILLS) --jobs $(JOBS) --seed $(SEED) --out results/soak/kills.json

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

perf: $(STAMP)
	@status=0; for script in optimizer_step loop_overhead replicas split_mnist; do \
	  $(BIN)/python perf/$$script.py || status=1; done; exit $$status

clean:
	rm -rf $(VENV)
