# Every target that needs Python builds .venv first where that is missing or
# does not match the lock; `make` alone lists the targets.
#   make PYTHON=/path/to/python3.12 …   builds with that Python
#   make venv GPU=1                     adds TensorFlow's CUDA 12 libraries
#   make venv RAY=1                     adds Ray, for --runtime=ray
#   make train TRAIN_ARGS="…"           trains with other flags
#   make test TEST_ARGS="-k fed_rep"    passes arguments to pytest
PYTHON ?=
GPU ?=
RAY ?=
UV ?= uv
TEST_PROCESSES ?= 2
TRAIN_ARGS ?= --flagfile=binaries/flagfiles/fed_rep.txt
TEST_ARGS ?=
LOCK_ARGS ?=

VENV_PYTHON := .venv/bin/python
DOCS_PYTHON := .venv-docs/bin/python
SOURCES := tff_pfl binaries tests
# `make lock` never lets uv fetch a Python: a universal lock needs none.
COMPILE = UV_PYTHON_DOWNLOADS=never $(UV) pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(LOCK_ARGS)

.DEFAULT_GOAL := help
.PHONY: help venv train test test-slow docs docs-serve docs-venv wheel lint lock clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile \
	  | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

venv:  ## Build .venv from the lock (GPU=1: with CUDA libraries; RAY=1: with Ray)
	@GPU='$(GPU)' RAY='$(RAY)' PYTHON='$(PYTHON)' sh .ci/build_venv

train: venv  ## Main job: train on the digits and show per-client results
	@$(VENV_PYTHON) -m binaries.train $(TRAIN_ARGS)

test: venv  ## Run the fast tests (TEST_PROCESSES=2: that many at a time)
	@$(VENV_PYTHON) -m pytest -n '$(TEST_PROCESSES)' --dist loadfile \
	  --no-loadscope-reorder $(TEST_ARGS)

test-slow: venv  ## Run the slow tests and the tutorials (a night)
	@$(VENV_PYTHON) -m pytest -m 'slow and not gpu' $(TEST_ARGS)

docs: docs-venv  ## Build the documentation into site/ (a warning is an error)
	@NO_MKDOCS_2_WARNING=1 $(DOCS_PYTHON) -m mkdocs build --strict --quiet \
	  && echo 'The documentation: site/index.html'

docs-serve: docs-venv  ## Serve the documentation while you write it
	@NO_MKDOCS_2_WARNING=1 $(DOCS_PYTHON) -m mkdocs serve

docs-venv:
	@PYTHON='$(PYTHON)' sh .ci/build_venv docs

wheel: venv  ## Build dist/tff_pfl-*.whl, for other environments
	@$(VENV_PYTHON) -m hatchling build -t wheel

lint: venv  ## Check style and format with ruff
	@$(VENV_PYTHON) -m ruff check $(SOURCES)
	@$(VENV_PYTHON) -m ruff format --check $(SOURCES)

lock:  ## Recompile the locks with uv (LOCK_ARGS=--upgrade: newest versions)
	@command -v '$(UV)' >/dev/null || { echo "make lock needs uv:\
	 https://docs.astral.sh/uv/getting-started/installation/" >&2; exit 1; }
	@$(COMPILE) requirements.in --override overrides.txt -o requirements.txt
	@$(COMPILE) requirements-gpu.in --constraint requirements.txt -o requirements-gpu.txt
	@$(COMPILE) requirements-ray.in --constraint requirements.txt -o requirements-ray.txt
	@$(COMPILE) requirements-docs.in -o requirements-docs.txt

clean:  ## Remove the environments, caches, site/ and dist/ (never runs/)
	@rm -rf .venv .venv-docs site dist .pytest_cache .ruff_cache
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
