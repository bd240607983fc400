# Every target creates .venv and installs what it needs by itself; the second time it only checks the time stamps.
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are first imported: pip would compile all of them, which takes longer than the installation.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Two torch processes with two threads each on two cores run ten times slower than with one thread each.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-slow test-nnunet coverage mutation lint format stubs docs bench clean

demo: .venv/installed
	$(BIN)/calibseg demo --output demo-out

test: lint
	$(PYTEST) -m "not slow"

test-slow: .venv/installed-test
	$(PYTEST) -m slow -n 0

# nnU-Net itself, in an environment of its own; needs the hippocampus data (CALIBSEG_DATA), about ten minutes.
test-nnunet: .venv-nnunet/installed
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-nnunet/bin/python -m pytest tests/integrations/nnunet

# nnU-Net wants torchvision for its transformers only, and PyPI's does not load beside a CPU-only torch. Its search for
# trainers imports them all, so that they go with it.
.venv-nnunet/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-nnunet
	$(subst .venv,.venv-nnunet,$(PIP)) --editable ".[nnunet]" "nnunetv2<2.9" pytest hypothesis
	.venv-nnunet/bin/python -m pip uninstall --quiet --yes torchvision
	rm -rf .venv-nnunet/lib/python3*/site-packages/nnunetv2/training/nnUNetTrainer/primus
	@touch $@

# Which lines and branches of src/ the tests reach; the list at the end is what they do not.
coverage: .venv/installed-test
	$(PYTEST) -m "not slow" --cov --cov-branch --cov-report=term-missing:skip-covered --cov-report=html

# Deliberate faults, drawn by a seed: how many the tests notice, room by room (an hour).
mutation: .venv/installed-test
	$(BIN)/python scripts/mutation.py --jobs 2

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What type checkers know of lazily loaded names: after a new member of a family, or a change of its __init__.py.
stubs: .venv/installed-test
	$(BIN)/python scripts/stubs.py

# The site in site/: docs/, a page for every member, the commands; strict about links.
docs: .venv/installed-docs
	$(BIN)/python scripts/site.py

bench: .venv/installed-test
	@for file in $$(ls benchmarks/*.py | grep -v -e metrics_ -e nnunet); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	@touch $@

.venv/installed-test: .venv/installed
	$(PIP) --editable ".[test]"
	@touch $@

.venv/installed-docs: .venv/installed
	$(PIP) --editable ".[docs]"
	@touch $@

clean:
	rm -rf .venv .venv-nnunet site build demo-out .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage* htmlcov
