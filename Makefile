# The one entry to everything. `make` alone lists the verbs; a verb's line after ## is its help.

PYTHON ?= python3
STORAGE ?= layers
VENV := .venv
BIN := $(VENV)/bin
KEEPER := src/sandlot/_bin/sandlot-keeper
ATTEMPT := src/sandlot/_bin/sandlot-attempt
PRELOAD := src/sandlot/_bin/sandlot-preload.so
SCOUT := src/sandlot/_bin/sandlot-scout
KEEPER_ASAN := guest/build/sandlot-keeper-asan
GUEST_SOURCES := $(shell find guest -path guest/build -prune -o -type f -print 2>/dev/null)

# The built-in template is the machine's own /usr: what an agent expects to find there, and what builds the guest.
# `make DEBIAN= …` leaves the machine's packages alone.
DEBIAN := sudo git busybox-static python3 python3-pip python3-venv gcc libc6-dev runsc zfs-fuse e2fsprogs btrfs-progs

PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
SAY := printf '%-10s%s\n'

# Programs are started by the hundred: each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.SHELLFLAGS := -euc
.PHONY: help setup guest demo test check conform gen compat pictures soak serversoak processes leaks model storages roots powercut bench fuzz sanitize wheel clean debian

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(VENV)/.installed $(KEEPER) $(ATTEMPT) $(PRELOAD) $(SCOUT) ## make .venv, install what is locked, build the guest program
	@:

guest: $(KEEPER) $(ATTEMPT) $(PRELOAD) $(SCOUT) ## build the guest program and put it into the package
	@:

demo: setup ## show a sandbox at work: write, run, try to get out, come back after a restart
	@$(BIN)/sandlot demo

test: setup ## run the whole test suite, on all cores
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: setup ## lint, format, types, and the rules of the house
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -q tests/tidy

conform: setup ## hold the runtimes and storages of this machine to what every one of them promises
	@$(BIN)/sandlot --data-dir build/conform conform
	@$(BIN)/sandlot --data-dir build/conform conform --storage all

gen: setup ## write what is generated: the messages of the wire, what is sync, and the reference
	@$(BIN)/python tools/gen_wire.py
	@$(BIN)/python tools/gen_sync.py
	@$(BIN)/python tools/gen_opensandbox.py
	@$(BIN)/python tools/gen_reference.py

compat: setup ## run OpenSandbox's own clients, of several releases, on our gateway, and write what passes into COMPATIBILITY.md (root)
	@$(BIN)/python tools/compat.py

pictures: setup ## draw the pictures of the README again, from the last bench and a new demo (root)
	@cp build/bench/results.json docs/pictures/bench.json
	@$(BIN)/python -m tests.performance.picture docs/pictures/bench.json docs/pictures/bench.svg
	@$(BIN)/python tools/record_demo.py

bench: setup ## measure what the documents promise
	@$(BIN)/python -m tests.performance.bench

soak: setup ## kill engines at every named place, 200 times, and look what is found behind; STORAGE=btrfs (root)
	@$(BIN)/python -m tests.soak.run --storage $(STORAGE)

serversoak: setup ## kill a server every minute under mixed work, for SERVER_SOAK_S=1800 seconds; a summary and a picture (root)
	@$(BIN)/python -m tests.soak.server

processes: setup ## launch, follow and kill 1,000 processes over 100 sessions, the engine killed among them (root)
	@$(BIN)/python -m tests.soak.processes

leaks: setup ## make and destroy 10,000 sessions, and look what is left of them (root)
	@$(BIN)/python -m tests.soak.leaks

powercut: setup ## cut the power at every flush of a disk and between, and look what an engine finds (root)
	@$(BIN)/python -m tests.power.run

model: setup ## ask an engine and a model of it the same, 2,000 times and more, and compare; STORAGE=zfs (root)
	@$(BIN)/python -m tests.model.run --storage $(STORAGE)

storages: setup ## every suite on every storage that is ready here, and a table at the end; STORAGES="btrfs zfs" (root)
	@$(BIN)/python -m tests.matrix $(STORAGES:%=--storage %)

roots: setup ## make a root filesystem with mmdebstrap, and sessions of it on every runtime (root, a download)
	@$(BIN)/python -m pytest --make-roots tests/e2e/test_foreign_roots.py tests/e2e/test_template_build.py

fuzz: ## fuzz the guest program's parser and the scout
	@$(MAKE) --no-print-directory -C guest fuzz

sanitize: setup ## run the tests on a guest program built with sanitizers
	@$(MAKE) --no-print-directory -C guest $(KEEPER_ASAN:guest/%=%)
	@SANDLOT_KEEPER=$(CURDIR)/$(KEEPER_ASAN) $(BIN)/python -m pytest

wheel: setup ## build a wheel into dist/
	@$(SAY) wheel 'building into dist/'
	@rm -rf build/lib* build/bdist.*
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove everything that these verbs made
	@rm -rf $(VENV) build dist guest/build src/sandlot/_bin src/sandlot.egg-info .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || :

# Asked anew each time: dpkg-query is quick, and a stamp would not notice a package that was removed.
# Without root or network the checkout is still of use, so this step tells what is missing and goes on.
debian:
	@command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || exit 0; \
	present=$$(dpkg-query -W -f '$${db:Status-Status} $${Package}\n' $(DEBIAN) 2>/dev/null | sed -n 's/^installed //p'); \
	missing=; \
	for package in $(DEBIAN); do \
		printf '%s\n' "$$present" | grep -qx "$$package" || missing="$$missing $$package"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" != 0 ]; then \
		$(SAY) debian "skipped, because only root can install:$$missing"; exit 0; \
	fi; \
	$(SAY) debian "installing$$missing"; \
	mkdir -p build; \
	export DEBIAN_FRONTEND=noninteractive PATH="$$PATH:/usr/sbin:/sbin"; \
	quiet='-qq -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=30'; \
	{ apt-get $$quiet update && apt-get $$quiet install -y --no-install-recommends $$missing; } >build/apt.log 2>&1 || { \
		tail -n 3 build/apt.log; \
		$(SAY) debian "not installed, sessions go without:$$missing (the whole log: build/apt.log)"; \
	}

$(VENV)/bin/python: | debian
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Python 3.11 or later is needed: make PYTHON=/path/to/python3 setup'; exit 1; }
	@$(SAY) venv "$(VENV), $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.locked: requirements/dev.txt | $(VENV)/bin/python
	@$(SAY) install 'locked requirements'
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.locked | $(KEEPER) $(ATTEMPT) $(PRELOAD) $(SCOUT)
	@$(SAY) install 'sandlot, editable'
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(KEEPER) $(ATTEMPT) $(PRELOAD) $(SCOUT) &: $(GUEST_SOURCES) | debian
	@command -v cc >/dev/null || command -v gcc >/dev/null || { \
		echo 'no C compiler: install gcc and libc6-dev, then run make guest'; exit 1; }
	@$(SAY) guest 'compiling'
	@$(MAKE) --silent --no-print-directory -C guest
	@mkdir -p $(@D)
	@for program in $(KEEPER) $(ATTEMPT) $(PRELOAD) $(SCOUT); do \
		cp guest/build/$${program##*/} $$program.new && mv $$program.new $$program; \
	done
