# Everything is set up in .venv, by the first target that needs it. `make` alone says what there is.

PYTHON ?= python3
BIN := .venv/bin
# Each process of a test or a demo would compile all of ours again where this is set.
unexport PYTHONDONTWRITEBYTECODE

PARALLEL = -n $(or $(WORKERS),2) --dist worksteal

.PHONY: help demo test core simulate chaos upgrade kube attack lint format schemas docs lines count picture page wheel clean

help:
	@echo "make demo      watch a job find its size while its workers, its master and its broker are killed"
	@echo "make test      core, simulation and broker rings, and the ten slowest tests (WORKERS=5)"
	@echo "make simulate  10,000 deterministic histories (COUNT=...)"
	@echo "make chaos     real processes under SIGKILL, SIGSTOP and broker restarts"
	@echo "make upgrade   a job trains through kills while each part alone is of another release than all others (the operator: as make kube)"
	@echo "make kube      tests against a real Kubernetes API server (ROVER_KUBE or ROVER_TEST_KUBECONFIG; skips without)"
	@echo "make attack    random histories of real processes with damage, judged by the witness (SEEDS=0..9)"
	@echo "make lint      ruff, mypy, import-linter, schemas that have drifted"
	@echo "make schemas   write schemas/ from the event types"
	@echo "make docs      write docs/api.md, rights.md, settings.md, metrics.md, http.md and the chart's values from the code"
	@echo "make lines     list every error, event, log line and help text (ARGS=error)"
	@echo "make count     count the statements of rover_bus, by package"
	@echo "make picture   draw the demo's narration for the README"
	@echo "make page      draw the page for docs/page.md, in light and dark and on a phone (needs chromium)"

# -- set-up ------------------------------------------------------------------------------------------------------------

.venv/pyvenv.cfg:
	@lacks=""; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || lacks="$$lacks python3 (3.11 or newer)"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || lacks="$$lacks python3-venv"; \
	command -v git >/dev/null || lacks="$$lacks git"; \
	if [ -n "$$lacks" ]; then echo "this system lacks:$$lacks (apt-get install python3 python3-venv git)" >&2; exit 1; fi
	@$(PYTHON) -m venv .venv

.venv/run.stamp: .venv/pyvenv.cfg pyproject.toml
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[broker,speed]'
	@touch $@

.venv/dev.stamp: .venv/pyvenv.cfg pyproject.toml
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@# Each of the processes that test would compile all of it again.
	@$(BIN)/pytest -qq --collect-only tests/broker tests/core tests/simulation > /dev/null || true
	@touch $@ .venv/run.stamp

# -- to run ------------------------------------------------------------------------------------------------------------

demo: .venv/run.stamp
	@$(BIN)/rover demo $(ARGS)

picture: .venv/run.stamp
	$(BIN)/rover demo --picture docs/demo.svg

page: .venv/dev.stamp
	PYTHONPATH=tests/rigs $(BIN)/python docs/make_page.py $(ARGS)

# -- to check ----------------------------------------------------------------------------------------------------------

# Tests with a broker wait more than they compute: three processes of five begin with them, while the others use the cores (tests/conftest.py).
test: .venv/dev.stamp
	$(BIN)/pytest -n $(or $(WORKERS),5) --dist worksteal --durations=10 tests/broker tests/core tests/simulation $(ARGS)

core: .venv/dev.stamp
	$(BIN)/pytest $(PARALLEL) tests/core $(ARGS)

simulate: .venv/dev.stamp
	ROVER_SIMULATIONS=$(or $(COUNT),10000) $(BIN)/pytest $(PARALLEL) tests/simulation --timeout=7200 $(ARGS)

chaos upgrade kube: export TEST_PATIENCE_S = 900

chaos: .venv/dev.stamp
	$(BIN)/pytest $(PARALLEL) tests/chaos --timeout=1800 $(ARGS)

upgrade: .venv/dev.stamp
	$(BIN)/pytest $(PARALLEL) tests/upgrade --timeout=1800 $(ARGS)

kube: .venv/dev.stamp
	$(BIN)/pytest tests/kube -rs --timeout=1800 $(ARGS)

attack: .venv/dev.stamp
	PYTHONPATH=tests/rigs $(BIN)/python -m attack $(or $(SEEDS),0..9) $(ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m rover_bus.cli.schemas --check
	$(BIN)/python -c 'import rover_bus.master.evolution'  # every record has its evolution, or this fails
	$(BIN)/python docs/make_api.py --check
	$(BIN)/python docs/make_rights.py --check
	$(BIN)/python docs/make_chart.py --check
	$(BIN)/python docs/make_settings.py --check
	$(BIN)/python docs/make_http.py --check
	$(BIN)/python docs/make_alerts.py --check
	$(BIN)/python docs/make_dashboards.py --check

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: .venv/dev.stamp
	$(BIN)/python -m rover_bus.cli.schemas

docs: .venv/dev.stamp
	$(BIN)/python docs/make_api.py
	$(BIN)/python docs/make_rights.py
	$(BIN)/python docs/make_chart.py
	$(BIN)/python docs/make_settings.py
	$(BIN)/python docs/make_http.py
	$(BIN)/python docs/make_alerts.py
	$(BIN)/python docs/make_dashboards.py

lines: .venv/dev.stamp
	@$(BIN)/python docs/make_lines.py $(ARGS)

count: .venv/dev.stamp
	@$(BIN)/python docs/count_statements.py

wheel: .venv/dev.stamp
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
