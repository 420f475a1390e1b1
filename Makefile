# cpb: `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# uv where it is there, with the same pins; UV=0 keeps pip, which also finds what pip is configured to find.
UV ?= $(shell command -v uv >/dev/null && echo 1)
ifeq ($(UV),1)
INSTALL := uv pip install --python $(BIN)/python -c constraints.txt
UNINSTALL := uv pip uninstall --quiet --python $(BIN)/python
else
INSTALL := $(BIN)/pip install --disable-pip-version-check -c constraints.txt
UNINSTALL := $(BIN)/pip uninstall --quiet --yes --disable-pip-version-check
endif

.DEFAULT_GOAL := help
.PHONY: help install wheel demo docs reference lint check test test-fast test-all test-slow freqtrade fmt clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# The build of torch in .venv: CPU, CUDA or ROCm; nothing where there is none. torch itself takes seconds to load.
BUILD = $(BIN)/python -c "import importlib.util as u, pathlib, runpy; \
t = runpy.run_path(str(pathlib.Path(u.find_spec('torch').origin).with_name('version.py'))); \
print('CUDA' if t['cuda'] else 'ROCm' if t.get('hip') else 'CPU')" 2>/dev/null

.venv/.installed: pyproject.toml constraints.txt
	@case "$$($(BUILD)) $$(uname -sm)" in \
	CPU*) echo "Installing cpb into .venv, with the CPU build of torch that is there: 0.4 GB to download, 2 GB on disk.";; \
	CUDA*|ROCm*) echo "Installing cpb into .venv, with the GPU build of torch that is there: 0.4 GB to download, 6 GB on disk.";; \
	*Darwin*) echo "Installing cpb into .venv, with torch's CPU build, the only one for macOS: 0.5 GB to download, 2 GB on disk.";; \
	*"Linux x86_64") echo "Installing cpb into .venv, with torch's CUDA build, which is PyPI's for Linux: 3 GB to download, 6 GB on"; \
	  echo "disk. For the CPU build (0.5 and 2 GB) stop here, and install it into .venv first: docs/install.md.";; \
	*) echo "Installing cpb into .venv: 0.5 GB to download, 2 GB on disk; with a CUDA build of torch 3 and 6 GB.";; \
	esac; echo "It takes 2 to 10 minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	-$(UNINSTALL) cpbmodels # cpb contains this package: another copy of it would be imported instead
	$(INSTALL) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	@echo "Installing the tools for tests and documents: 0.5 GB to download, 1 GB on disk; 1 to 5 minutes."
	$(INSTALL) -e '.[dev,tune,wandb,docs,postgres,ray]'
	touch $@

install: .venv/.installed ## create .venv and install cpb into it
	@echo "cpb is installed: .venv has $$(du -sk .venv/ | awk '{printf "%.1f GB", $$1 * 1.024e-6}'), with torch's $$($(BUILD)) build."
	@echo "Next: make demo"

# build/lib first: setuptools would pack what an earlier build left there.
wheel: .venv/.installed ## build cpb and the light library as wheels, dist/*.whl
	$(BIN)/python -m tasks.storage.wheel dist
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

demo: .venv/.installed ## train, judge and package 4 series x 5 architectures on simulated klines (offline)
	@echo "The demo trains 20 models on simulated klines: under a minute on two quiet cores, 30 MB in data/ and mlruns/."
	$(BIN)/cpb demo

docs: .venv/.installed-dev ## the documentation site, build/site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html, or: $(BIN)/mkdocs serve"

reference: .venv/.installed-dev ## write the tables of docs/reference.md anew from the code
	$(BIN)/python docs/_site/tables.py

# What the product may have, in names, keywords, operators and numbers: raised only with a reason in the commit.
TOKENS := 340071

lint: .venv/.installed-dev ## ruff, mypy, import rules, the product's size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.size --at-most $(TOKENS)

check: lint ## under a minute, for every commit: lint, types, and a tiny run from klines to forecasts
	$(BIN)/pytest tests/golden -m '' -k demo

# By file: what a module's tests share (a server, a cluster, a trained home) is then made once, and not in every process;
# in the order of tests/conftest.py, which has the longest files first.
# A worker more than the cores, for tests that wait for other processes.
XDIST := -n 3 --dist loadfile --no-loadscope-reorder

test: lint test-fast ## lint, types, import rules and the fast tests

test-fast: .venv/.installed-dev ## the fast tests alone
	@echo "The fast tests: 5 to 6 minutes on two quiet cores."
	$(BIN)/pytest $(XDIST) --durations=20 $(if $(COVERAGE),--cov --cov-report=term:skip-covered)

test-all: lint ## everything, with real servers, browser, kills and long trainings
	@echo "All tests, with servers, browser, kernels and long trainings: about 27 minutes on two cores."
	$(BIN)/pytest $(XDIST) -m ''

.venv-freqtrade/.installed: cpbmodels/pyproject.toml Makefile
	test -x .venv-freqtrade/bin/python || $(PYTHON) -m venv .venv-freqtrade
	.venv-freqtrade/bin/pip install --disable-pip-version-check -e ./cpbmodels freqtrade==2026.9
	touch $@

freqtrade: .venv-freqtrade/.installed ## create .venv-freqtrade, in which the slow tests run the real freqtrade

test-slow: .venv/.installed-dev ## the slow tests alone: what test-all has beyond test
	$(BIN)/pytest $(XDIST) -m slow --durations=20

fmt: .venv/.installed-dev ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove caches (never data/ or mlruns/)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
