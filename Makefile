# Two commands set everything up on a fresh machine: `make demo` and `make test`.
# Debian packages needed: python3 python3-venv make g++

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint types unit lock results image clean tools
.DELETE_ON_ERROR:

demo: $(STAMP)
	@$(BIN)/python scripts/demo.py

test: $(VENV)/.installed-test lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests

# Missing tools stop here, each with the package that brings it.
tools:
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: apt-get install python3"; exit 2; }
	@command -v g++ >/dev/null || { echo "g++ is missing: apt-get install g++"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: apt-get install python3.11, then make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv is missing: apt-get install python3-venv"; exit 2; }

$(STAMP): pyproject.toml requirements.lock setup.py $(wildcard tirgemm/artifact/native/*) | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --editable .
	@touch $@

# PyTorch is only needed by the tests of tirgemm.torch; it is large, so that the demo does without.
$(VENV)/.installed-test: $(STAMP)
	$(BIN)/python -m pip install -qq --disable-pip-version-check torch==2.13.0
	@touch $@

# Exact versions of every extra, from the ranges in pyproject.toml; no index address in them.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --extra dev pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --extra client pyproject.toml --output-file requirements-client.lock

# Tables in README and docs, from the results files.
results: $(STAMP)
	$(BIN)/python benchmarks/render.py

image: 
	docker build --tag tirgemm .

clean:
	rm -rf $(VENV) .demo build dist *.egg-info
