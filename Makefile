# make demo    `flatout diagnose` on shipped traces, then `flatout tune` on a small job with ordinary faults (5 minutes)
# make test    lint, types, tests and docs, as continuous integration runs them
# make integrations    other libraries, in two separate environments: `make clusters`, Ray Data and Dask (5 minutes and 1 GB),
#                      and `make stack`, notebooks, trainers, trackers and JAX (15 minutes and 3 GB). Both run, also if one fails
# make release    the release checklist: builds the artefacts, checks them and installs them (3 minutes)
# make fuzz    damaged inputs for every reader, with new seeds (10 minutes; INPUTS=500 of each, SEED=7 to repeat a run)
# make lint    ruff and mypy only          make docs    the docs site, into build/site
#
# Each makes its own virtual environment in .venv, and installs into it again only when pyproject.toml changes.
# Another interpreter: make test PYTHON=/usr/bin/python3.12

.DEFAULT_GOAL := demo
.PHONY: demo test fuzz lint compiled docs clean integrations clusters stack man release

VENV := .venv
BIN := $(VENV)/bin
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$python -c '$(USABLE)' 2>/dev/null && { echo $$python; break; }; done)

KEEP_BYTECODE := env -u PYTHONDONTWRITEBYTECODE
# Tests that start real jobs beside each other on busy cores meet hiccups that no user's job meets: what failed is run once
# more, alone. A fault fails twice; what passes is listed as failed above, and is to be made robust.
ALONE = { code=$$?; [ $$code -eq 1 ] || exit $$code; \
	echo "Tests failed beside others. They are run again, each alone:"; \
	PYTEST_ADDOPTS= $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none --junitxml=build/junit-alone.xml; }
DEMO_JOB := $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 2 examples/jobs/train_slow.py

demo: $(VENV)/torch.stamp
	@mkdir -p build
	@$(BIN)/flatout diagnose examples/traces/straggler.tar.xz --html build/straggler.html --force
	@echo
	@echo "The same as a page to send to a colleague: build/straggler.html"
	@echo
	@echo "Now the closed loop, on a job with two gloo ranks: $(DEMO_JOB)"
	@rm -rf build/tuning
	@OMP_NUM_THREADS=1 $(BIN)/flatout tune --budget 270s --warmup 3 --steps 12 --out build/tuning -- $(DEMO_JOB); \
		code=$$?; [ $$code -le 1 ] || exit $$code
	@echo
	@echo "Its report: build/tuning/report.html"
	@echo "On your own job:   docs/how-to/tune.md"

test: $(VENV)/test.stamp
	@$(MAKE) --no-print-directory -j 2 lint compiled docs
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder || $(ALONE)

# While mypy runs on one core: the tests start many Pythons, each of which would compile Flatout, and each worker of pytest
# would rewrite the assertions of all test files for itself, which takes longer than to import them.
compiled: $(VENV)/test.stamp
	@$(KEEP_BYTECODE) $(BIN)/python -m compileall -q src tests/jobs
	@$(KEEP_BYTECODE) $(BIN)/python -m pytest --collect-only -q -n 0 >/dev/null || true

INPUTS ?= 100
fuzz: $(VENV)/test.stamp
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Every part runs, and what failed is said at the end.
integrations:
	@failed=; for part in clusters stack; do \
		$(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; \
	[ -z "$$failed" ] || { echo "error: failed:$$failed" >&2; echo "hint: its tests alone: make NAME" >&2; exit 1; }

# An environment of its own for each part: large packages that nothing else needs.
OF_PARTS := --quiet --disable-pip-version-check 'torch==2.13.0' pytest
HAS_PYTHON = test -n "$(PYTHON)" || { \
	echo "error: Flatout needs Python 3.11 to 3.14 with the venv module, and none was found"; \
	echo "hint: name one: make PYTHON=/path/to/python3.12"; exit 2; } >&2

# Ray Data, Dask and Hugging Face `datasets`.
CLUSTERS := .venv-integrations
clusters:
	@$(HAS_PYTHON)
	@echo "Ray Data, Dask and Hugging Face datasets, in $(CLUSTERS): 1 GB, about 5 minutes"
	@test -x $(CLUSTERS)/bin/python || $(PYTHON) -m venv $(CLUSTERS)
	@$(CLUSTERS)/bin/python -m pip install $(OF_PARTS) --editable '.[data,ray,dask]' datasets hypothesis
	$(CLUSTERS)/bin/python -m pytest -W default integrations --ignore integrations/stack

# JupyterLab, trainers, trackers and JAX.
STACK := .venv-stack
stack:
	@$(HAS_PYTHON)
	@echo "JupyterLab, trainers, trackers and JAX, in $(STACK): 3 GB, about 15 minutes"
	@test -x $(STACK)/bin/python || $(PYTHON) -m venv $(STACK)
	@$(STACK)/bin/python -m pip install $(OF_PARTS) --editable . $$(grep -v '^#' integrations/stack.txt)
	$(STACK)/bin/python -m pytest -W default integrations/stack

release:
	$(PYTHON) packaging/check_release.py --out dist

man: $(VENV)/core.stamp
	$(BIN)/python packaging/man_pages.py build/man

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo "the docs: build/site/index.html"

clean:
	rm -rf $(VENV) $(CLUSTERS) $(STACK) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/made.stamp:
	@$(HAS_PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/core.stamp: $(VENV)/made.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# A torch that $(PYTHON) has is used as it is; otherwise the tests' torch is installed, and its size said before.
$(VENV)/torch.stamp: $(VENV)/core.stamp
	@$(PYTHON) packaging/demo_torch.py $(BIN)/python; code=$$?; \
		[ $$code -ne 3 ] || { $(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'; code=$$?; }; \
		exit $$code
	@touch $@

$(VENV)/docs.stamp: $(VENV)/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

# The tests take nothing from the user's Python, whose torch `make demo` may have made visible.
$(VENV)/test.stamp: $(VENV)/docs.stamp
	@rm -f $(VENV)/lib/python*/site-packages/torch_of_the_user.pth
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,docs]'
	@touch $@
