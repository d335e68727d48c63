# VENV=path places the environment elsewhere; PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := convert,sim,bench,dev
ROOMS := slo radix_global migration eval cli
PYTEST_ARGS ?=
# Tests without a real server mostly wait; real servers want the machine to themselves, and live in
# folders of their own, so that the others' modules need not be imported for them.
WORKERS ?= 4
SERVERS := tests/engine tests/chaos
# Threads of one test would only wait for the other workers.
SIDE_BY_SIDE := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(addprefix --ignore=,$(SERVERS)) \
	-n $(WORKERS) --dist worksteal

# The dependencies are stamped by their pins, the project by its checkout and metadata: a second
# run installs nothing.
DECLARED = sed -n '/^requires-python/p;/^dependencies = /,/^\[project.scripts\]/p' pyproject.toml
PINS := $(shell ($(DECLARED); cat constraints.txt) | sha256sum | cut -c1-16)
PLACE := $(shell (echo "$(CURDIR)"; cat pyproject.toml) | sha256sum | cut -c1-16)
DEPS_STAMP := $(VENV)/.bana-deps-$(PINS)
PLACE_STAMP := $(VENV)/.bana-place-$(PINS)-$(PLACE)

.PHONY: venv venv-lmcache demo test test-full lint mypy pins clean

venv: $(PLACE_STAMP)

$(DEPS_STAMP):
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[$(EXTRAS)]'
	rm -f $(VENV)/.bana-*
	touch $@

$(PLACE_STAMP): $(DEPS_STAMP)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	rm -f $(VENV)/.bana-place-*
	touch $@

# The comparison's own environment: LMCache pins another torch than SGLang does.
venv-lmcache: .venv-lmcache/.bana-lmcache

.venv-lmcache/.bana-lmcache: constraints-lmcache.txt
	test -x .venv-lmcache/bin/python || $(PYTHON) -m venv .venv-lmcache
	.venv-lmcache/bin/python -m pip install --no-deps lmcache==0.5.6
	.venv-lmcache/bin/python -m pip install -r constraints-lmcache.txt
	touch $@

demo: venv
	$(BIN)/bana demo

test: venv lint
	$(SIDE_BY_SIDE) -m "not full" $(PYTEST_ARGS)
	$(BIN)/python -m pytest $(SERVERS) -m "not full" $(PYTEST_ARGS)

test-full: venv lint
	$(SIDE_BY_SIDE) $(PYTEST_ARGS)
	$(BIN)/python -m pytest $(SERVERS) $(PYTEST_ARGS)

lint: venv mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=build/types $(BIN)/lint-imports --no-cache

# The folders are mapped under `bana.*`; checkers see that mapping as a tree of links.
mypy:
	rm -rf build/types && mkdir -p build/types/bana
	for room in $(ROOMS); do ln -s ../../../$$room build/types/bana/$$room; done
	ln -s ../../sglang_bana build/types/sglang_bana
	MYPYPATH=build/types $(BIN)/mypy $(foreach room,$(ROOMS),-p bana.$(room)) -p sglang_bana

pins:
	@echo $(PINS)

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
