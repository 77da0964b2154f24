# The two commands to know: make demo, make test.
SHELL := /bin/bash
.DEFAULT_GOAL := help

DEVICE ?= cpu
VENV ?= .venv
# rsl_rl releases that the tests also run with: older ones, and the newest for mjlab.
RSL_RL := 5.0.1 5.4.2 5.5.1
# The newest torch, newer than Isaac Lab's: noxfile.py names it too.
NEXT_TORCH := .torch/2.15.0/.installed

# mjlab runs on Python 3.10 to 3.13: PYTHON=3.10 makes a separate environment.
MJLAB := .venv-mjlab$(PYTHON:%=-%)
PLAYGROUND := .venv-playground
ISAACLAB2 := .venv-isaaclab2
ROBOT := .venv-robot/.installed
BROWSER := .browser/.installed

# Not named PYTHON: that is the user's choice above.
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# Folder where tests write JUnit files, for .ci/run.
REPORTS ?=
OTHER_RSL_RL := $(RSL_RL:%=.rsl_rl/%/.installed)
# By default each experiment has its own folder under runs/.
RUN_OPTIONS := --device $(DEVICE) $(if $(RUN),--output '$(RUN)')

.PHONY: demo demo-mjlab demo-go1 demo-camera test test-fast test-matrix finetune curves distillation \
	distillation-mjlab bench gpu docs web site site-links site-looks lint types format stats doctor clean help

demo: $(INSTALLED)  ## train, distil and evaluate in Isaac Lab (DEVICE=cuda:0 for a GPU, RUN=folder)
	$(PY) -m scripts.pipeline configs/demo.yaml $(RUN_OPTIONS)

demo-mjlab: $(MJLAB)/.installed  ## the same in mjlab; DEVICE and RUN as above, PYTHON=3.10 (to 3.13)
	$(MJLAB)/bin/python -m scripts.pipeline configs/demo-mjlab.yaml $(RUN_OPTIONS)

demo-go1: $(INSTALLED)  ## students with and without memory of a Go1 with late and wrong sensors; RUN as above
	$(PY) -m scripts.pipeline configs/demo-go1.yaml $(RUN_OPTIONS)

demo-camera: $(INSTALLED)  ## the same with a student that sees only depth frames; DEVICE and RUN as above
	$(PY) -m scripts.pipeline configs/demo-camera.yaml $(RUN_OPTIONS)

test: $(INSTALLED)  ## run the tests of everything but scripts/ with the newest rsl_rl and Isaac Lab
	$(PY) -m pytest -n 2 --dist loadgroup --ignore=tests/scripts --ignore=tests/browser $(REPORTS:%=--junitxml=%/test.xml)

test-fast: $(INSTALLED)  ## run the fast tests of core and algorithms
	$(PY) -m pytest -n 2 --dist loadgroup tests/core tests/algorithms -m "not slow"

test-matrix: $(INSTALLED) $(OTHER_RSL_RL) $(NEXT_TORCH) $(ROBOT) $(BROWSER) $(MJLAB)/.installed $(PLAYGROUND)/.installed $(ISAACLAB2)/.installed  ## run tests with every other version and platform
	@rows=$$($(PY) -m nox --list | sed -n 's/^\* tests(\([^)]*\)).*/row-\1/p') && \
		$(MAKE) --keep-going --jobs 2 --output-sync $${rows:?nox lists no rows}

# Two run at a time, because most use one core; each row's output is printed when it ends.
row-%:
	MJLAB=$(MJLAB) PLAYGROUND=$(PLAYGROUND) ISAACLAB2=$(ISAACLAB2) $(PY) -m nox --session 'tests($*)'

finetune: $(INSTALLED)  ## train, distil and fine-tune with PPO; DEVICE and RUN as above
	$(PY) -m scripts.pipeline configs/finetune.yaml $(RUN_OPTIONS)

curves: $(INSTALLED)  ## learning curves of fine-tuning over five seeds; DEVICE and RUN as above
	$(PY) -m scripts.pipeline.curves configs/learning_curves.yaml $(RUN_OPTIONS) \
		--figure docs/figures/learning_curves.svg

distillation: $(INSTALLED)  ## learning curves of distillation compared with rsl_rl's; DEVICE and RUN as above
	$(PY) -m scripts.pipeline.curves configs/distillation_curves.yaml $(RUN_OPTIONS) \
		--figure docs/figures/distillation_curves.svg

distillation-mjlab: $(MJLAB)/.installed  ## the same in mjlab; DEVICE, RUN and PYTHON as above
	$(MJLAB)/bin/python -m scripts.pipeline.curves configs/distillation_curves_mjlab.yaml $(RUN_OPTIONS) \
		--figure docs/figures/distillation_curves_mjlab.svg

bench: $(INSTALLED)  ## time and memory of updates compared with rsl_rl's; DEVICE and RUN as above
	$(PY) -m scripts.benchmark suite $(RUN_OPTIONS)

gpu: $(INSTALLED) $(MJLAB)/.installed  ## tests, benchmark, profiles and Go1's study on a GPU, to run and send back: runs/gpu
	$(PY) -m scripts.gpu --device $(if $(filter cpu,$(DEVICE)),cuda:0,$(DEVICE)) $(if $(RUN),--output '$(RUN)')

docs: $(INSTALLED)  ## write the option tables from the code, and the notebooks from their pages
	$(PY) -m scripts.option_tables
	$(PY) -m scripts.notebooks

web: $(INSTALLED)  ## write the page docs/push_it: a Go1, its students and its teacher in the browser
	$(VENV)/bin/rsl-tbptt web 'LSTM student=examples/go1_real_student' 'MLP student=examples/go1_real_memoryless' \
		'Teacher=examples/go1_real_teacher/model_899.pt' --output docs/push_it

# Sphinx reads every page again: it checks links between pages and docstrings while reading.
SPHINX = $(PY) -m sphinx --fresh-env --quiet
site: $(INSTALLED)  ## build the documentation into build/site; a broken link or anchor is an error
	rm -rf build/site
	$(SPHINX) --fail-on-warning --keep-going -b html -d build/doctrees docs build/site
	[ ! -d docs/push_it ] || cp -r docs/push_it build/site

site-links: $(INSTALLED)  ## the same check for links to other sites, which needs the network
	$(SPHINX) -b linkcheck -d build/doctrees docs build/linkcheck

site-looks: $(BROWSER) web site  ## open every page of build/site in Chromium; screenshots in build/screenshots
	$(PY) -m scripts.ci.site_looks build/site build/screenshots

lint: $(INSTALLED)  ## check style and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED)  ## check types
	@mkdir -p .pyright && ln -sfn ../tasks .pyright/rsl_tbptt_tasks
	$(VENV)/bin/pyright --warnings --pythonpath $(PY)

format: $(INSTALLED)  ## apply formatting and safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

stats: $(INSTALLED)  ## print the sizes that tests/test_structure.py limits
	@$(PY) -m scripts.ci.stats

doctor: $(INSTALLED)  ## check this setup and print what is wrong
	$(VENV)/bin/rsl-tbptt doctor

clean:  ## remove environments and caches; keeps runs/
	rm -rf build docs/push_it .browser .venv .venv-mjlab* .venv-playground .venv-isaaclab2 .venv-robot .venv-uv .nox .rsl_rl .torch .pyright .pytest_cache .ruff_cache .hypothesis *.egg-info

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

$(INSTALLED): pyproject.toml constraints.txt constraints-main.txt scripts/ci/bootstrap.sh
	VENV=$(VENV) scripts/ci/bootstrap.sh environment main
	@touch $@

$(MJLAB)/.installed: pyproject.toml constraints.txt constraints-mjlab.txt scripts/ci/bootstrap.sh
	VENV=$(MJLAB) scripts/ci/bootstrap.sh environment mjlab
	@touch $@

$(PLAYGROUND)/.installed: pyproject.toml constraints.txt constraints-playground.txt scripts/ci/bootstrap.sh
	VENV=$(PLAYGROUND) scripts/ci/bootstrap.sh environment playground
	@touch $@

$(ISAACLAB2)/.installed: pyproject.toml constraints.txt constraints-isaaclab2.txt scripts/ci/bootstrap.sh
	VENV=$(ISAACLAB2) scripts/ci/bootstrap.sh environment isaaclab2
	@touch $@

$(BROWSER): scripts/ci/bootstrap.sh
	scripts/ci/bootstrap.sh browser
	@mkdir -p $(@D) && touch $@

$(ROBOT): scripts/ci/bootstrap.sh
	scripts/ci/bootstrap.sh robot
	@touch $@

.rsl_rl/%/.installed: $(INSTALLED)
	VENV=$(VENV) scripts/ci/bootstrap.sh rsl_rl $*
	@touch $@

.torch/%/.installed: $(INSTALLED)
	VENV=$(VENV) scripts/ci/bootstrap.sh torch $*
	@touch $@
