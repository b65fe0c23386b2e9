# Each target builds what it needs of the virtual environment, once; `make clean` throws it away.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed
# Byte code is made when a module is first imported: to make all of it would take half of a minute more.
unexport PYTHONDONTWRITEBYTECODE
# Some sandboxes announce a CPU's AMX and forbid it, and torch dies of it (docs/running.md).
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# A worker for each core, which takes over waiting tests of slower ones; each has one thread (conftest.py).
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

KILLS  ?= 1000
FUZZ   ?= 20000
SEED   ?= 0
JOBS   ?= 2

.PHONY: help demo test test-all test-frameworks test-kernels docs notebooks dist soak lint format perf clean

help:
	@echo "make demo   the synthetic study: table, checks, figure and page in a bit over two minutes, set-up included"
	@echo "make test   lint, type check and the test suite"
	@echo "make test-all   the slow and the browser tests too (some 15 minutes)"
	@echo "make docs   the documentation site, into build/site"
	@echo "make notebooks   run the tutorials anew and keep what they print and draw"
	@echo "make dist   the wheel and the source distribution, into dist/"
	@echo "make test-frameworks   Avalanche, DeepSpeed and Ray Train, in an environment of their own"
	@echo "make test-kernels   the encoder's Triton kernels without a GPU, by Triton's interpreter (some minutes, 1 GB)"
	@echo "make soak   hours of damaged input and killed runs (FUZZ=20000 KILLS=1000 SEED=0 JOBS=2)"
	@echo "make lint   ruff, pyright and the import rules only"
	@echo "make perf   speed and memory, as ratios taken in one run"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("longtail needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "set-up: a virtual environment in $(VENV), some seconds"
	@$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml bench/pyproject.toml constraints.txt | $(BIN)/python
	@echo "set-up: PyTorch, pandas and altair into $(VENV), about a minute with packages near; this once"
	@$(PIP) --editable '.[report]' --editable ./bench
	@touch $@

$(STAMP): pyproject.toml bench/pyproject.toml constraints.txt | $(BIN)/python
	@echo "set-up: PyTorch and what tests, documentation and integrations need into $(VENV), some two minutes; this once"
	@$(PIP) --editable '.[dev]' --editable './bench[all]'
	@touch $(CORE) $@

demo: $(CORE)
	@$(BIN)/python bench/tools/demo.py

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m 'not gpu'

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site: build/site/index.html"

notebooks: $(STAMP)
	$(BIN)/python docs/notebooks/build.py

dist: $(STAMP)
	$(BIN)/python -m build --outdir dist . && $(BIN)/python -m build --outdir dist bench

# Together they bring some 150 packages, so CI's environment is without them. DeepSpeed's build needs torch.
FRAMEWORKS := .venv-frameworks
test-frameworks:
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[avalanche,ray]' pytest 'setuptools<81' wheel
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation deepspeed
	$(FRAMEWORKS)/bin/python -m pytest -m 'slow or not slow' tests/integrations/test_avalanche.py tests/integrations/test_deepspeed.py tests/integrations/test_ray_train.py

# Triton takes 1 GB and a CPU build of PyTorch comes without it, so CI's environment does, too.
KERNELS := .venv-kernels
test-kernels:
	test -x $(KERNELS)/bin/python || $(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet --constraint constraints.txt --editable . --editable ./bench triton pytest
	TRITON_INTERPRET=1 $(KERNELS)/bin/python -m pytest bench/tests/encoder/test_kernels.py

soak: $(STAMP)
	LONGTAIL_FUZZ=$(FUZZ) $(PYTEST) tests/fuzz
	$(BIN)/python tests/fuzz/kill_soak.py --kills $(KILLS) --jobs $(JOBS) --seed $(SEED) --out bench/results/soak/kills.json

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
	rm -rf $(VENV) $(FRAMEWORKS) $(KERNELS)
