# The two commands of the README: `make demo` and `make test`. Nothing else is needed before either.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup test test-asyncio test-containers test-vms quick test-all-pythons lint bench demo demo-svg format clean system venv

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 20

setup: system $(STAMP)  ## make .venv and install everything, development tools included

system:
	@bash scripts/system-packages

# All that running exeat needs of the system; the tests need more.
venv:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || bash scripts/system-packages

$(STAMP): pyproject.toml hatch_build.py $(wildcard src/exeat/gateway/flow/native/*)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@echo "installing exeat and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

test: setup  ## run all tests
	@bash scripts/run-tests $(BIN)/python

test-containers: setup  ## run the tests with real engines over all of them: Docker and Podman, with and without root
	@EXEAT_TEST_ENGINES=all bash scripts/run-tests $(BIN)/python tests/containers

test-asyncio: setup  ## run the tests of the gateway over asyncio's transports, as where exeat was installed without a compiler
	@EXEAT_STREAMS=asyncio bash scripts/run-tests $(BIN)/python tests/unit/gateway tests/unit/serve tests/threats tests/integration/test_[a-q]*.py tests/integration/test_redirect*.py tests/integration/test_reload.py tests/integration/test_serve*.py tests/integration/test_tunnels.py tests/integration/test_workers.py

test-vms: setup  ## run the tests with real guests over all kernels
	@EXEAT_TEST_VMS=all bash scripts/run-tests $(BIN)/python tests/vms

quick: lint  ## lint and most unit tests, with a tenth of the generated examples: in a minute, after each change
	@EXEAT_TEST_QUICK=1 bash scripts/run-tests $(BIN)/python -m "not thorough" tests/unit

test-all-pythons: setup  ## run all tests on each Python that pyproject.toml names and this machine has
	@$(BIN)/python scripts/test_all_pythons.py

lint: setup  ## types, style, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## compare with other proxies; writes bench/RESULTS.md and the table of the README (about a quarter of an hour)
	$(BIN)/python -m bench
	$(BIN)/python scripts/speed_table.py

demo: venv $(STAMP)  ## see the jail hold, and the gateway decide
	@$(BIN)/python -m examples.demo
	@$(BIN)/python -m examples.container_demo

demo-svg: venv $(STAMP)  ## draw the demo: docs/demo.svg, and its text in the README
	@$(BIN)/python scripts/draw_demo.py

format: setup  ## put the sources into the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(VENV)-3.* bench/.work tests/clients/node_modules .mypy_cache .ruff_cache .hypothesis .import_linter_cache
