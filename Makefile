# The two commands to know: make demo, make test.
SHELL := /bin/bash
.DEFAULT_GOAL := help

DEVICE ?= cpu
RUN ?= runs/demo
VENV ?= .venv
# Releases that the tests compare with, beside the one in the environment.
RSL_RL := 5.0.1 5.4.2

PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
OLDER_RSL_RL := $(RSL_RL:%=.rsl_rl/%/.installed)
export VENV

.PHONY: demo test lint types format doctor clean help

demo: $(INSTALLED)  ## train, distil and evaluate in Isaac Lab (DEVICE=cuda:0 for a GPU, RUN=folder)
	$(PYTHON) scripts/demo.py --device $(DEVICE) --output $(RUN)

test: $(INSTALLED) $(OLDER_RSL_RL)  ## run every test
	$(PYTHON) -m pytest

lint: $(INSTALLED)  ## check style and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED)  ## check types
	$(VENV)/bin/pyright --pythonpath $(PYTHON)

format: $(INSTALLED)  ## apply formatting and safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

doctor: $(INSTALLED)  ## say what is wrong with this setup
	$(PYTHON) scripts/doctor.py

clean:  ## remove environments and caches; keeps runs/
	rm -rf .venv .venv-uv .rsl_rl .pytest_cache .ruff_cache .hypothesis *.egg-info

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt scripts/bootstrap.sh
	scripts/bootstrap.sh environment
	@touch $@

.rsl_rl/%/.installed: $(INSTALLED)
	scripts/bootstrap.sh rsl_rl $*
	@touch $@
