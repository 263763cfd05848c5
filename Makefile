# `make audit` and `make test` are all a newcomer needs; both create the environment on first use.
.DEFAULT_GOAL := help
.PHONY: audit bench check clean docs format help privacy sbom slow test thorough

PYTHON ?= python3
VENV := $(if $(LOCKED),.venv-locked,.venv)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= audit

# Rooms such as attacks/ must never be importable as top-level packages from the repository's root.
export PYTHONSAFEPATH = 1

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ifdef LOCKED
LOCK := .lock/$(shell $(PYTHON) -c "import platform as p, sys; print(f'{p.system().lower()}-{p.machine()}-cp{sys.version_info[0]}{sys.version_info[1]}')").txt

$(LOCK):
	@echo "error: $@ is missing: there is no lock for this platform and Python (there are: $(wildcard .lock/*.txt))" && exit 2

$(READY): pyproject.toml $(LOCK)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --only-binary :all: --requirement $(LOCK)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
else
$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	@touch $@
endif

audit: $(READY) ## run five protocols on digits, write their reports and $(OUT)/index.html; LOCKED=1: from the lock file
	$(BIN)/fdaudit quickstart --out $(OUT) --resume

PYTEST_IN_PARALLEL = $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: $(READY) ## run the tests (some 15 minutes on 2 cores; nothing but the digits data is needed)
	$(PYTEST_IN_PARALLEL) -m "not slow and not thorough" $(ARGS)

thorough: $(READY) ## run the tests that `make test` leaves out for time; PART=1/6: a sixth of them
	$(PYTEST_IN_PARALLEL) -m "thorough and not slow" $(if $(PART),--part $(PART)) $(ARGS)

slow: $(READY) ## run the slow tests, with their figures; FDAUDIT_DATA adds those that need data
	$(BIN)/python -m pytest -m slow -s $(ARGS)

check: $(READY) ## ruff, mypy --strict over an installed copy, import rules, known vulnerabilities of locked packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf build .check && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .check .
	@rm -rf build
	MYPYPATH=.check $(BIN)/mypy --config-file pyproject.toml --cache-dir .mypy_cache -p fdaudit
	$(BIN)/python -m pytest -q tests/test_import_rules.py
	$(BIN)/python .lock/audit.py

sbom: $(READY) ## write the bill of materials of a release, from the lock file, into dist/
	$(BIN)/python .lock/bom.py

docs: $(READY) ## build the documentation site into docs/_build/html; warnings end it
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

privacy: $(READY) ## run the FD privacy table (FDAUDIT_DATA has MNIST and CIFAR-10) into runs/fd-privacy-*, or go on with it
	@for data in digits mnist cifar10; do \
		$(BIN)/fdaudit sweep examples/sweep-fd-privacy-$$data.yaml --out runs/fd-privacy-$$data --resume || exit 1; \
		$(BIN)/fdaudit curve runs/fd-privacy-$$data --out runs/fd-privacy-$$data-curves || exit 1; \
	done

bench: $(READY) ## run every benchmark; each prints ratios measured in one run
	@for f in benchmarks/[a-z]*.py; do echo "== $$f"; PYTHONPATH=benchmarks $(BIN)/python $$f || exit 1; done

format: $(READY) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the targets above made, but no run
	rm -rf .venv .venv-* .check build docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf docs/attacks docs/defences docs/deviations docs/protocols $(addprefix docs/,card.md datasets.md models.md performance.md privacy-table.md quickstart.md results.md spec.md) docs/*.schema.json
