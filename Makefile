# make demo | test | check | bench. Everything runs from .venv; the first run makes it.
VENV   ?= .venv
PYTHON ?= $(shell for v in 3.11 3.12 3.13; do p=$$(command -v python$$v) && $$p -c 'import venv, ensurepip' 2>/dev/null && { echo $$p; break; }; done)
ENGINE ?= torch
ARGS   ?=
BIN     = $(VENV)/bin

.PHONY: demo test test-engines test-engines-all check bench docs clean
.DEFAULT_GOAL := help

help:
	@sed -n '1p' Makefile

$(VENV)/.stamp: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "batchscope needs Python 3.11, 3.12 or 3.13 with venv: apt-get install python3 python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (once, about two minutes)" >&2
	@$(PYTHON) -m venv $(VENV) && $(BIN)/pip install -qU pip >&2
	@$(BIN)/pip install -q -c constraints.txt -e '.[all]' --group dev >&2
	@touch $@

# torch is a stamp of its own: `make demo ENGINE=cost` never downloads it
$(VENV)/.torch: $(VENV)/.stamp
	@echo "installing torch (once; without a GPU the CPU build is enough)" >&2
	@$(BIN)/pip install -q -c constraints.txt -e '.[engine]' >&2
	@touch $@

demo: $(VENV)/.stamp $(if $(filter torch,$(ENGINE)),$(VENV)/.torch)
	@$(BIN)/batchscope demo --engine $(ENGINE) $(ARGS)

test: $(VENV)/.torch
	@$(BIN)/python -m pytest -q $(ARGS)

# the real Scheduler of each version, and a real server of the one that is installed
VLLM     = 0.10.2 0.16.0 0.23.0 0.31.0 0.33.0
VLLM_ALL = $(VLLM) 0.8.5 0.11.2 0.12.0 0.14.1 0.19.1 0.27.0 0.30.0

test-engines: $(VENV)/.torch
	@ARGS="$(ARGS)" bash .ci/engines.sh $(VLLM)

test-engines-all:
	@MINUTES=90 $(MAKE) -s test-engines VLLM="$(VLLM_ALL)"

check: $(VENV)/.torch
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check

docs: $(VENV)/.stamp
	@$(BIN)/python docs/generate.py

bench: $(VENV)/.torch
	@$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
