# Two commands set everything up on a fresh machine: `make demo` and `make test`.
# Debian packages needed: python3 python3-venv python3-dev make g++

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := -m pip --disable-pip-version-check -qq
# Two more than the two cores: many tests wait for a process, a socket or a clock.
WORKERS ?= 4

# PyTorch stands in an environment of its own: its CUDA builds require an older NVRTC than ours, and tvm_ffi imports it,
# for two seconds, in every process that has it. The demo does without.
TORCH_VENV  := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed
# Ray, too, for who asks for it.
RAY_VENV  := .venv-ray
RAY_STAMP := $(RAY_VENV)/.installed
TORCH_TESTS := $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.\(also_\)\?torch' tests)

# Those that run alone, and what inherits some of them: to collect all of the others takes as long as they do.
ALONE_TESTS := $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.\(timing\|gpu\)\|family_contract import' tests)

# Modules are compiled when they are imported first, and by one process for all: most of what is installed never is.
INSTALL := $(PIP) install --no-compile
unexport PYTHONDONTWRITEBYTECODE

# The pip that a venv is born with may be years old: to look through an index for wheels that fit takes it four times as
# long. To compile it takes six seconds: environments are made without it, and the first one's pip serves both.
NEW_PIP := $(shell grep '^pip==' requirements.lock)
TORCH_PIP := $(BIN)/python $(PIP) --python $(TORCH_VENV)/bin/python

# Targets beside each other; what a target prints stays together.
TOGETHER := --no-print-directory --jobs=2 --output-sync=target

.PHONY: demo test lint types unit parallel-tests torch-tests timing-tests ray-tests lock docs results image image-test sbom up clean tools
.DELETE_ON_ERROR:

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py

# What takes longest begins first, and beside it all that is not alone.
test:
	@$(MAKE) $(TOGETHER) parallel-tests lint types torch-tests
	@$(MAKE) --no-print-directory timing-tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# First what may run side by side, in both environments; then, alone, what measures seconds or uses a GPU.
unit: $(STAMP) $(TORCH_STAMP)
	@$(MAKE) $(TOGETHER) parallel-tests torch-tests
	@$(MAKE) --no-print-directory timing-tests

# The plus lets its progress through as it comes.
parallel-tests: $(STAMP)
	+$(BIN)/python -m pytest tests -m 'not (torch or timing or gpu)' --numprocesses $(WORKERS) --dist worksteal

timing-tests: $(STAMP)
	$(BIN)/python -m pytest $(ALONE_TESTS) -m '(timing or gpu) and not torch'

torch-tests: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/python -m pytest $(TORCH_TESTS) -m 'torch or also_torch'

# Not part of `test`: Ray's wheel has 70 MB, and its clusters take minutes.
ray-tests: $(RAY_STAMP)
	$(RAY_VENV)/bin/python -m pytest tests/contract/engines

# Missing tools stop here, each with the package that brings it.
tools:
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 2; }
	@command -v g++ >/dev/null || { echo "g++ is missing: apt-get install g++"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3.11, then make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv is missing: apt-get install python3-venv"; exit 2; }

# A changed lock means a new environment: nothing is replaced in an old one, and nothing stays of it.
$(VENV)/.pip: requirements.lock | tools
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(BIN)/python scripts/first_pip.py $(NEW_PIP)
	@touch $@

$(VENV)/.locked: $(VENV)/.pip
	$(BIN)/python $(INSTALL) --requirement requirements.lock
	@touch $@

$(STAMP): $(VENV)/.locked pyproject.toml setup.py $(wildcard tirgemm/artifact/native/*.cc tirgemm/artifact/native/*.h)
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python $(PIP) check
	@touch $@

$(RAY_STAMP): requirements.lock pyproject.toml | $(STAMP)
	$(PYTHON) -m venv --clear $(RAY_VENV)
	$(RAY_VENV)/bin/python $(INSTALL) --constraint requirements.lock --editable '.[dev,ray]'
	@touch $@

# The largest part beside the other environment; the rest when that has built the launcher, which lies in the checkout.
$(TORCH_VENV)/.pytorch: requirements-torch.lock | $(VENV)/.pip
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || { echo "Python's headers, which torch.compile needs, are missing: apt-get install python3-dev"; exit 2; }
	$(PYTHON) -m venv --clear --without-pip $(TORCH_VENV)
	$(TORCH_PIP) install --no-compile --constraint requirements-torch.lock torch
	@touch $@

# The lock constrains and does not list: a CPU build of PyTorch, where pip is told of one (PIP_FIND_LINKS or
# PIP_EXTRA_INDEX_URL), needs none of the CUDA packages that the registry's build brings, three gigabytes.
$(TORCH_STAMP): $(TORCH_VENV)/.pytorch | $(STAMP)
	CXX="'$(CURDIR)/scripts/built_launcher.sh'" $(TORCH_PIP) install --no-compile --constraint requirements-torch.lock --editable '.[test-torch]'
	$(TORCH_PIP) check
	@touch $@

# Exact versions of every extra, from the ranges in pyproject.toml; no index address in them. What two locks share has
# one version: those of the first are where the others start.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url pyproject.toml
lock: | tools
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python $(PIP) install uv
	$(VENV)-lock/bin/$(LOCK) --extra dev --output-file requirements.lock
	cp requirements.lock requirements-torch.lock
	$(VENV)-lock/bin/$(LOCK) --extra test-torch --output-file requirements-torch.lock
	cp requirements.lock requirements-client.lock
	$(VENV)-lock/bin/$(LOCK) --extra client --output-file requirements-client.lock
	cp requirements.lock requirements-service.lock
	$(VENV)-lock/bin/$(LOCK) --extra service --extra cuda --extra postgres --extra traces --output-file requirements-service.lock

# docs/ as a site, built again at every change. `make test` builds it too: tests/project/test_site.py.
docs: $(STAMP)
	$(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8001

# Tables in README and docs, and README's picture, from the results files.
results: $(STAMP)
	$(BIN)/python benchmarks/render.py

# Docker, or what takes its commands: make image ENGINE=podman
ENGINE ?= docker
image:
	$(ENGINE) build --tag tirgemm .

# What the image consists of, as CycloneDX.
sbom:
	@mkdir -p dist
	$(ENGINE) run --rm --entrypoint cat tirgemm /usr/share/doc/tirgemm/sbom.cdx.json > dist/sbom.cdx.json

# All of compose.yaml, with the GPU where there is one.
up:
	docker compose --file compose.yaml $$(nvidia-smi --list-gpus >/dev/null 2>&1 && echo --file compose.gpu.yaml) up --build

# Builds the image with buildah, runs it as it is deployed, and looks into it. Where no registry can be reached:
# make image-test IMAGE_BASE=mmdebstrap
image-test: $(STAMP)
	$(BIN)/python -u scripts/image_test.py

clean:
	rm -rf $(VENV) $(TORCH_VENV) $(RAY_VENV) $(VENV)-lock $(VENV)-client $(VENV)-wheel .demo .site build dist *.egg-info
