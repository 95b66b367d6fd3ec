# `make help` lists the targets. Two matter most: `make demo` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
HACK := PYTHONPATH=hack $(PY) -m
CACHE := $${XDG_CACHE_HOME:-$$HOME/.cache}/disaggregated-inference
CODE := operator/src connector/src images/router/src
CHECKED := $(CODE) hack tests benchmarks
PYTEST := $(PY) -m pytest

##@ Use it

.PHONY: demo
demo: setup ## Bring up a cluster, install the operator, serve a small model and ask it something
	@$(HACK) demo up

.PHONY: demo-down
demo-down: ## Remove all that the demo made; build caches stay
	@if [ -x $(PY) ]; then $(HACK) demo down; else echo "nothing to remove: .venv is not there, so no demo was made here"; fi

##@ Check it

.PHONY: test
test: setup binaries ## Run the tests that need no cluster: units, a real API server, a real Mooncake, the router, the chart
	$(PYTEST) tests/unit tests/api tests/router tests/connector tests/chart -m "not cluster and not engines and not long" $(ARGS)

.PHONY: test-unit
test-unit: setup ## Run the unit tests alone (a minute)
	$(PYTEST) tests/unit $(ARGS)

.PHONY: test-engines
test-engines: setup ## Run the tests with real vLLM engines on this machine (20 minutes; some need the model of `make images`)
	$(PYTEST) tests/connector -m "engines and not long" $(ARGS)

.PHONY: test-faults
test-faults: setup ## Take the store from real vLLM engines in every way, 50 prompts each; what it cost goes to benchmarks/results
	$(PYTEST) tests/connector/test_engines_under_faults.py --full-counts $(ARGS)

.PHONY: e2e
e2e: setup binaries images ## Run the end-to-end tests on a real kubelet, in the size of CI
	$(PYTEST) tests/e2e -m "not long" $(ARGS)

.PHONY: e2e-long
e2e-long: setup binaries images ## Run the end-to-end tests with full counts; results go to benchmarks/results
	@$(HACK) cluster build --only optional
	$(PYTEST) tests/e2e --full-counts $(ARGS)

.PHONY: test-cluster
test-cluster: setup binaries ## Check that the local cluster leaves nothing behind (takes a running one down)
	$(PYTEST) tests/cluster $(ARGS)

.PHONY: verify
verify: setup ## Format, lint, types, layers, generated files: what CI asks of every change
	.venv/bin/ruff format --check $(CHECKED)
	.venv/bin/ruff check $(CHECKED)
	.venv/bin/mypy $(CODE) hack tests benchmarks
	.venv/bin/lint-imports
	$(HACK) generate --check

.PHONY: bench-connector
bench-connector: setup ## Time the connector beside others', arms interleaved; ratios go to benchmarks/results
	for part in v0 transfer stall handoff tax; do PYTHONPATH=tests $(PY) benchmarks/$$part.py $(ARGS) || exit 1; done

.PHONY: bench-operator
bench-operator: setup binaries ## Time the operator beside bare server-side applies on a real API server; figures go to benchmarks/results
	PYTHONPATH=tests:hack $(PY) benchmarks/operator_figures.py $(ARGS)

.PHONY: gpu-check
gpu-check: setup ## Prove and time the connector's copies to and from a GPU (torch alone, 5 minutes); says so where there is none
	@PYTHONPATH=tests $(PY) benchmarks/gpu_check.py

##@ Develop

.PHONY: setup
setup: ## Install what the machine lacks: OS packages, uv, the Python environment, Go
	@hack/setup.sh

.PHONY: generate
generate: setup ## Write the CRD, the chart's copy, the values schema and the reference pages
	$(HACK) generate

.PHONY: fmt
fmt: setup ## Format the code
	.venv/bin/ruff format $(CHECKED)
	.venv/bin/ruff check --fix $(CHECKED)

.PHONY: golden
golden: setup ## Rewrite the golden manifests; review the diff
	$(PYTEST) tests/unit/build tests/chart --update-golden $(ARGS)

.PHONY: lock
lock: setup ## Resolve the hashed requirements again
	hack/lock.sh

##@ Local cluster

.PHONY: binaries
binaries: setup ## Build Kubernetes, etcd, CoreDNS, containerd and Helm from source, once
	@$(HACK) cluster build

.PHONY: images
images: setup ## Build the container images and push them to the local registry
	@$(HACK) cluster registry-up
	@$(HACK) imagebuild build
	@$(HACK) imagebuild push

.PHONY: cluster-up
cluster-up: setup binaries ## Start the local Kubernetes
	@$(HACK) cluster up

.PHONY: cluster-down
cluster-down: ## Stop it and remove what it left on the machine
	@$(HACK) cluster down

.PHONY: cluster-status
cluster-status: ## Tell how it is
	@$(HACK) cluster status

.PHONY: clean-cache
clean-cache: ## Remove built binaries, images and models
	@$(HACK) cluster registry-down
	@$(HACK) imagebuild prune --all
	rm -rf "$(CACHE)"

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
