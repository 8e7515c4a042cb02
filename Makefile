# Everything a developer or CI calls. `make help` lists it; every target sets up what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON3 ?= python3
PY := .venv/bin/python
export PYTHONUNBUFFERED := 1
# Tests start hundreds of programs, each in half the time if its modules are compiled already;
# container images often forbid to keep them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: env
env: ## create the locked environment (.venv)
	@$(PYTHON3) tools/setup.py env

.PHONY: demo
demo: env ## the main job: two engines, one agent, then the real control plane (ACT=1, POISON=1, ENGINE=vllm)
	@$(PY) -m tests.demo $(if $(ACT),--act $(ACT)) $(if $(POISON),--poison) $(if $(ENGINE),--engine $(ENGINE))

.PHONY: test
test: env ## lint, types, import contracts and every test that this machine can run
	@$(PY) tools/check.py test

.PHONY: test-long
test-long: env ## what takes longer than CI may: run before calling an issue resolved
	@$(PY) tools/check.py test-long

.PHONY: lint
lint: env ## ruff, mypy, import contracts
	@$(PY) tools/check.py lint

.PHONY: unit
unit: env ## the tests that need no cluster
	@$(PY) tools/check.py unit

.PHONY: cluster
cluster: env ## a real control plane (NODE=1: with a node, as root); prints its kubeconfig; Ctrl-C leaves nothing behind
	@$(PY) -m tests.cluster up $(if $(NODE),--node)

.PHONY: e2e
e2e: env ## images, chart and engine pods on a real node (kubelet, containerd, runc); needs root
	@$(PY) -m tests.cluster build --helm --node && $(PY) -m pytest -q tests/e2e

.PHONY: images
images: env ## images of operator and agent in dist/images, without registry and daemon
	@$(PY) -m tools.images

.PHONY: test-vllm
test-vllm: env ## the real engine with the connector
	@$(PY) tools/check.py test-vllm

.PHONY: oracle
oracle: env ## replay recorded scheduler decisions (CASES=DIR, SELECT=slice)
	@$(PY) -m tests.oracle $(if $(CASES),--cases $(CASES)) $(if $(SELECT),--select $(SELECT))

.PHONY: bench
bench: env ## measurements as ratios against a peer or a limit of the same run
	@$(PY) -m tests.bench

.PHONY: checklist
checklist: env ## what an operator must do, a command a row; writes docs/checklist.md (ROWS="3 14")
	@$(PY) -m tests.checklist $(if $(ROWS),$(ROWS),--write)

.PHONY: mutants
mutants: env ## mutation testing of what decides (ONLY="GLOB ...", MINUTES=120, SURVIVORS=1); goes on where it ended
	@$(PY) tools/mutants.py $(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SURVIVORS),--survivors) --write

.PHONY: generate
generate: env ## write the CRDs from the models
	@$(PY) -m kvoffload_api.crd

.PHONY: format
format: env ## format the code
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

.PHONY: lock
lock: ## re-resolve the locked dependencies; needs uv
	uv pip compile --generate-hashes --python-version 3.11 pyproject.toml \
	  --extra operator --extra agent --extra dev -o requirements/dev.txt \
	  --custom-compile-command "make lock"
	for image in operator agent; do \
	  uv pip compile --generate-hashes --python-version 3.11 pyproject.toml --extra $$image \
	    -c requirements/dev.txt -o requirements/$$image.txt --custom-compile-command "make lock"; \
	done

.PHONY: clean
clean: ## remove the environment and tool caches of this checkout
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
