# Every target works on a fresh clone with Python 3.11 and make: `.venv` is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: venv demo test test-quick check format bench bench-quick protos clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[tune,compare,cross,cuda,cuda-build,postgres,dev]'
	touch $@

demo: venv  ## tune the costliest operators of SqueezeNet on this machine and show what was gained
	$(BIN)/python scripts/demo.py

test: venv  ## the whole suite
	$(BIN)/python -m pytest

test-quick: venv  ## what takes less than a quarter of a second each
	$(BIN)/python -m pytest -m 'not slow'

check: venv  ## format, lint, types, imports, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python protos/generate.py --check

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: venv  ## every benchmark, each beside its peer
	$(BIN)/python -m benchmarks

bench-quick: venv
	$(BIN)/python -m benchmarks --quick

protos: venv
	$(BIN)/python protos/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info
