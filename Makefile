# Every target sets up .venv by itself, once, and then does its job. `make` alone lists them.
#
#   make lab PYTHON=python3.12      another Python (3.10 to 3.13)
#   make test PYTEST_ARGS="-k ring" a part of the tests

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# In a container one is often root, and JupyterLab wants to be told that this is meant.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lab doctor demo test test-install bench notebooks lint format compare parity clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1#/p' $(MAKEFILE_LIST) | awk -F'#' '{printf "make %-13s %s\n", $$1, $$2}'

setup: $(READY) ## only make .venv

lab: $(READY) ## open the course in JupyterLab, on notebook 00
	@echo "== JupyterLab opens on notebook 00; stop it with Ctrl-C"
	@$(BIN)/jupyter lab $(ALLOW_ROOT) notebooks/00_start_here.ipynb

doctor: $(READY) ## look at this machine and say what would stop the course
	@$(BIN)/minddp doctor

demo: $(READY) ## train a tiny GPT on 2 ranks under each kind of DDP (about a minute)
	@$(BIN)/minddp demo

test: $(READY) ## unit tests and every notebook, strictly compared
	@echo "== tests and notebooks"
	@$(BIN)/python -m pytest --nbval $(PYTEST_ARGS)

test-install: $(READY) ## install the pip section of environment.yml into a fresh environment
	@echo "== a fresh environment from environment.yml (minutes)"
	@$(BIN)/python -m pytest tests/project/test_pins.py -m install

bench: $(READY) ## measure: latencies and speed ratios, each within one run
	@$(BIN)/minddp bench

notebooks: $(READY) ## run every notebook, store its outputs and the README's picture
	@for notebook in notebooks/[0-9]*.ipynb; do \
	  echo "== $$notebook"; \
	  $(BIN)/jupyter nbconvert --log-level=WARN --to notebook --execute --inplace \
	    --ExecutePreprocessor.record_timing=False --ExecutePreprocessor.timeout=120 \
	    --ExecutePreprocessor.kernel_name=python3 "$$notebook" || exit 1; \
	done
	@$(BIN)/python docs/pictures.py

lint: $(READY) ## ruff (code and notebooks) and mypy
	@echo "== ruff and mypy"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY) ## let ruff lay out code and notebooks
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

compare: $(READY) ## minddp and torch's DDP beside each other, case by case
	@$(BIN)/python -m tests.faults.compare

parity: $(READY) ## PyTorch's own DDP tests, run on our classes
	@$(BIN)/python -m tests.parity

clean: ## remove .venv and everything that was made
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last and removed first: where it is missing, an earlier set-up was
# interrupted and the environment starts over; where it is only older than the pins, the
# environment is brought up to them. torch goes first and pinned, so that pip never searches
# through its releases. The other pins need Python 3.11; on 3.10 only torch is held.
$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v else \
	  "minddp needs Python 3.10 or newer; %s is %d.%d. Name another: make PYTHON=python3.11" \
	  % ((sys.executable,) + v))'
	@if [ -e $@ ]; then echo "== the pins have changed: bringing $(VENV) up to them"; \
	  else echo "== making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); fi
	@rm -f $@
	@pins="--constraint constraints.txt"; \
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || pins="$(TORCH)"; \
	pip="$(BIN)/python -m pip --disable-pip-version-check"; \
	echo "== installing $(TORCH) (the large one: minutes on a slow line)" && \
	$$pip install $$pins $(TORCH) && \
	echo "== installing the rest" && \
	PYTHONWARNINGS=ignore $$pip install --quiet $$pins --editable '.[course,dev]' && \
	$$pip check
	@touch $@
	@echo "== $(VENV) is ready"
