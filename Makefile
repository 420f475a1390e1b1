# cpb: `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install wheel demo docs test test-all test-slow freqtrade lint fmt clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.venv/.installed: pyproject.toml cpbmodels/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install $(PIP_FLAGS) -e ./cpbmodels -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install $(PIP_FLAGS) -e '.[dev,judging,onnx,tune,wandb,docs]'
	touch $@

install: .venv/.installed ## create .venv and install cpb into it

wheel: .venv/.installed ## build the light library, dist/cpbmodels-*.whl
	$(BIN)/python -m tasks.storage.wheel dist

demo: .venv/.installed ## train, judge and package 4 series x 5 architectures on simulated klines (offline)
	$(BIN)/cpb demo

docs: .venv/.installed-dev ## the documentation site, build/site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html, or: $(BIN)/mkdocs serve"

lint: .venv/.installed-dev ## ruff, mypy, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, types, import rules and the fast tests
	$(BIN)/pytest -n 2

test-all: lint ## everything, with real servers, browser, kills and long trainings
	$(BIN)/pytest -n 2 -m ''

.venv-freqtrade/.installed: cpbmodels/pyproject.toml Makefile
	test -x .venv-freqtrade/bin/python || $(PYTHON) -m venv .venv-freqtrade
	.venv-freqtrade/bin/pip install --quiet --disable-pip-version-check -e ./cpbmodels freqtrade==2026.9
	touch $@

freqtrade: .venv-freqtrade/.installed ## create .venv-freqtrade, in which the slow tests run the real freqtrade

test-slow: .venv/.installed-dev ## the slow tests alone: what test-all has beyond test
	$(BIN)/pytest -n 2 -m slow

fmt: .venv/.installed-dev ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove caches (never data/ or mlruns/)
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
