# The two commands to know: make demo, make test.
SHELL := /bin/bash
.DEFAULT_GOAL := help

DEVICE ?= cpu
VENV ?= .venv
# Releases that the tests compare with, beside the one in the environment.
RSL_RL := 5.0.1 5.4.2

PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
OLDER_RSL_RL := $(RSL_RL:%=.rsl_rl/%/.installed)
# By default a preset has its own folder under runs/.
RUN_OPTIONS := --device $(DEVICE) $(if $(RUN),--output $(RUN))
export VENV

.PHONY: demo test finetune curves bench lint types format doctor clean help

demo: $(INSTALLED)  ## train, distil and evaluate in Isaac Lab (DEVICE=cuda:0 for a GPU, RUN=folder)
	$(PYTHON) scripts/pipeline.py configs/demo.yaml $(RUN_OPTIONS)

test: $(INSTALLED) $(OLDER_RSL_RL)  ## run every test
	$(PYTHON) -m pytest

finetune: $(INSTALLED)  ## train, distil and fine-tune with PPO; DEVICE and RUN as above
	$(PYTHON) scripts/pipeline.py configs/finetune.yaml $(RUN_OPTIONS)

curves: $(INSTALLED)  ## learning curves of all policies over three seeds; DEVICE and RUN as above
	$(PYTHON) scripts/curves.py configs/curves.yaml $(RUN_OPTIONS)

bench: $(INSTALLED)  ## time and memory of updates beside rsl_rl's; DEVICE and RUN as above
	$(PYTHON) scripts/benchmark.py suite $(RUN_OPTIONS)

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
	rm -rf .venv .venv-uv .rsl_rl .peers .pytest_cache .ruff_cache .hypothesis *.egg-info

help:  ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt scripts/bootstrap.sh
	scripts/bootstrap.sh environment
	@touch $@

.rsl_rl/%/.installed: $(INSTALLED)
	scripts/bootstrap.sh rsl_rl $*
	@touch $@

.peers/.installed: $(INSTALLED)
	scripts/bootstrap.sh peers
	@touch $@
