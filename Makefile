# Two commands on a fresh machine: `make demo` and `make test`. Needs Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
ARGS   ?=
WORKERS ?= 2

.PHONY: help setup demo test faults engines lint types bench clean

help:  ## what there is
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1  \2/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything pinned (about 30 s with a cold cache)

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) infra/setup_venv.py $(VENV) requirements/dev.txt
	@touch $@

demo: $(STAMP)  ## train the tool agent, end to end, on embedded engines; ARGS="--steps 10" passes arguments
	@$(BIN)/agl-stream demo $(ARGS)

test: $(STAMP)  ## all tests but the slowest and those on real engines
	@$(BIN)/python -m pytest -m "not slow and not engines" -n $(WORKERS) --dist loadfile $(ARGS)

faults: $(STAMP)  ## the tests that kill, pause and break things
	@$(BIN)/python -m pytest -m "slow and not engines" $(ARGS)

engines: $(STAMP)  ## the tests on Apache Kafka, Cassandra, Connect, Apicurio and PostgreSQL; needs Java 17 and Maven
	@$(BIN)/python -m pytest -m "engines" $(ARGS)

lint: $(STAMP)  ## ruff
	@$(BIN)/ruff check .

types: $(STAMP)  ## pyright
	@$(BIN)/pyright

bench: $(STAMP)  ## spans and rollouts through the whole system
	@$(BIN)/agl-stream bench spans $(ARGS)
	@$(BIN)/agl-stream bench rollouts $(ARGS)

clean:  ## remove what setup and tests made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
