# Every target first makes sure that the environment exists (tools/environment.py). Its output goes
# to standard error, so that only what was asked for is on standard output.
#
# PYTHON is the interpreter to build the environment with: make test PYTHON=python3.12

SHELL := /bin/bash
PYTHON ?= python3
OUT ?= rehearsal

IN_ENVIRONMENT = environment="$$($(PYTHON) tools/environment.py)" && PATH="$$environment/bin:$$PATH" &&
LOCK = pip compile --generate-hashes --no-emit-index-url --custom-compile-command "make lock" --quiet
# Wheels for one platform, laid beside each other without what they require (benchmarks/diagnosis).
LOCK_PEERS = $(LOCK) --no-deps --python-version 3.12 --python-platform x86_64-manylinux_2_39
# Locks that the package needs: of uv, and of the stacks that it creates.
SHIPPED_LOCKS = $(addprefix ../src/keepstep/stack/locks/,uv torch-2.14.1 torch-2.15.0)
CHECKED_BY_MYPY = $(wildcard src tools tests jobs benchmarks)

.DEFAULT_GOAL := help
.PHONY: help demo test check rehearse soak where lock clean-env

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: ## run a real training job that loses a rank and still ends bit-identically
	@$(IN_ENVIRONMENT) python tools/demo.py

test: ## run the tests (options: make test TESTS="tests/runtime -x")
	@$(IN_ENVIRONMENT) python -m pytest $(TESTS)

check: ## lint, format, types, import rules, machine paths
	@$(IN_ENVIRONMENT) ruff check . && ruff format --check . && mypy $(CHECKED_BY_MYPY) \
		&& lint-imports --no-logo && python tools/scan_paths.py

# Without a GPU a rehearsal cannot pass: what it could not prove is open (3, inconclusive), and said.
rehearse: ## prove that a job moves from PyTorch 2.14 to 2.15 and back (OUT=DIR for another place)
	@$(IN_ENVIRONMENT) { keepstep rehearse --out "$(OUT)" || [ $$? -eq 3 ]; }

soak: ## repeat faults for a long time and look for what leaks or drifts
	@$(IN_ENVIRONMENT) python tests/soak.py

where: ## print the environment's directory; bin/keepstep in it is the command
	@$(PYTHON) tools/environment.py

lock: ## lock the requirements again (newer versions: make lock UPGRADE=--upgrade)
	@uv="$$($(PYTHON) tools/environment.py uv)" && cd requirements && \
	for name in runtime dev bench $(SHIPPED_LOCKS); do \
		"$$uv" $(LOCK) --universal --python-version 3.11 $(UPGRADE) \
			$$(basename $$name).in --output-file $$name.txt >/dev/null || exit; \
	done && "$$uv" $(LOCK_PEERS) $(UPGRADE) \
		bench-diagnosis.in --output-file bench-diagnosis.txt >/dev/null

clean-env: ## remove this checkout's environments
	@$(PYTHON) tools/environment.py clean
