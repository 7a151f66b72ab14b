# The tasks of this repository; CI calls the same ones. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORTS ?= usual
TESTS ?= tests
JOBS ?= 2
FUZZER := .treering/fuzz
FUZZ_SECONDS ?= 600

.PHONY: help demo test slow gpu check lint types imports proto bench soak fuzz up down clean lock system-deps web

help:  ## list the tasks
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.lock requirements.bare.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Python is $$($(PYTHON) --version 2>&1), expected 3.11 to 3.13: make PYTHON=python3.11 …"; exit 1; }
	@command -v g++ >/dev/null || { echo "g++ is missing; expected a C++ compiler: apt-get install g++"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.bare.lock
	@touch $@

system-deps:  ## with SYSTEM_DEPS=1 and root: install what is missing; otherwise say what is missing
	@bash deploy/system-deps.sh

web:  ## fetch what runs ONNX graphs in a browser (python -m compiler page)
	@bash deploy/web-runtime.sh

demo: $(STAMP) system-deps  ## run the whole pipeline and show what it measured (KEEP=1, RECIPES="recipes.mnist recipes.minilm")
	$(BIN)/python -m flows demo $(RECIPES:%=--recipe %) --ports $(PORTS) $(if $(KEEP),--keep)

up: $(STAMP) system-deps  ## start the local stack
	$(BIN)/python -m flows up --ports $(PORTS)

down: $(STAMP)  ## stop the local stack
	$(BIN)/python -m flows down

test: $(STAMP) system-deps web  ## run the tests (TESTS=tests/ckpt runs some, JOBS=4 more at once)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 15 -m "not slow" $(TESTS)

slow: $(STAMP) system-deps web  ## run those that take minutes each: whole pipelines killed, side by side, on other servers
	$(BIN)/python -m pytest --durations 15 -m slow $(TESTS)

gpu: $(STAMP)  ## run the tests that need a CUDA device
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -n $(JOBS) -m gpu $(TESTS)

check: lint types imports  ## lint, types, import rule, generated code

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

proto: $(STAMP)  ## generate the protobuf code again
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $$(git ls-files '*.proto')

bench: $(STAMP)  ## time and memory of each stage of the pipeline
	$(BIN)/python -m benchmarks pipeline --json benchmarks/results/pipeline.json

soak: $(STAMP)  ## kill writers at every system call, let each fail, mutate files, kill every process of a stack, bad days (root, hours)
	$(BIN)/python -m tests.ckpt.soak_kill
	$(BIN)/python -m tests.ckpt.soak_kill_ranks
	$(BIN)/python -m tests.ckpt.soak_faults
	$(BIN)/python -m tests.ckpt.soak_flips --work .treering/soak-flips
	$(BIN)/python -m tests.ckpt.soak_large --work .treering/soak-large
	$(BIN)/python -m tests.hostile.soak_mutations --seconds 600
	$(BIN)/python -m tests.compiler.soak_mutations --mutants 100000
	$(BIN)/python -m tests.compiler.families.soak
	$(BIN)/python -m tests.compiler.soak_onnx
	$(BIN)/python -m tests.flows.soak_bad_days --home .treering/soak-days
	$(BIN)/python -m tests.flows.soak_kills --home .treering/soak-kills --json .treering/soak-kills.json

$(FUZZER)/.installed: requirements.fuzz.lock $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(FUZZER)/packages -r $<
	@touch $@

fuzz: $(FUZZER)/.installed  ## look for bytes that break a reader of ckpt, guided by coverage (FUZZ_SECONDS=600)
	PYTHONPATH=$(FUZZER)/packages $(BIN)/python -m tests.hostile.fuzz --seconds $(FUZZ_SECONDS) --home $(FUZZER)

lock: BARE = $(shell sed -n 's/^\([^#=]*\)==.*/--exclude \1/p' requirements.bare.lock)
lock: $(STAMP)  ## write requirements.lock from what is installed
	@{ sed '/^[^#]/,$$d' requirements.lock; $(BIN)/python -m pip freeze $(BARE) | sed 's/+cpu//'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:  ## remove the environment and the state folder
	rm -rf $(VENV) .treering
