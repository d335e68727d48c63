# VENV=path places the environment elsewhere; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := convert,sim,bench,dev
ROOMS := slo radix_global migration eval cli
PYTEST_ARGS ?=

.PHONY: venv venv-lmcache demo test test-full lint mypy clean

# The dependencies are stamped by the pins, the project by the checkout: a second run installs nothing.
PINS := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
DEPS_STAMP := $(VENV)/.bana-deps-$(PINS)
HERE_STAMP := $(VENV)/.bana-checkout-$(shell echo "$(CURDIR) $(PINS)" | sha256sum | cut -c1-16)

venv: $(HERE_STAMP)

$(DEPS_STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]'
	rm -f $(VENV)/.bana-deps-* $(VENV)/.bana-checkout-*
	touch $@

$(HERE_STAMP): $(DEPS_STAMP)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.bana-checkout-*
	touch $@

venv-lmcache:
	test -x .venv-lmcache/bin/python || $(PYTHON) -m venv .venv-lmcache
	.venv-lmcache/bin/python -m pip install -c constraints-lmcache.txt torch==2.13.0
	.venv-lmcache/bin/python -m pip install --no-deps lmcache==0.5.6

demo: venv
	$(BIN)/bana demo

test: venv lint
	$(BIN)/python -m pytest -m "not full" $(PYTEST_ARGS)

test-full: venv lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: venv mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=build/types $(BIN)/lint-imports --no-cache

# The folders are mapped under `bana.*`; checkers see that mapping as a tree of links.
mypy:
	rm -rf build/types && mkdir -p build/types/bana
	for room in $(ROOMS); do ln -s ../../../$$room build/types/bana/$$room; done
	ln -s ../../sglang_bana build/types/sglang_bana
	MYPYPATH=build/types $(BIN)/mypy -p bana.slo -p bana.radix_global -p bana.migration -p bana.eval -p bana.cli -p sglang_bana

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
