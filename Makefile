# Every target works on a fresh clone with Python 3.11 and make: `.venv` is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# What measures time runs alone; the rest shares the machine, each file in one process. Files are begun in the order of
# their folders: the long ones of tests/system are not left for the end, where nothing runs beside them. One process more
# than there are processors: where a test waits for a process, a link or a limit, another one works.
MINUTES ?= 60
JOBS ?= $(shell expr $$(nproc) + 1)
# Images with Python in them often forbid bytecode files: each of the hundreds of processes would compile our code anew.
unexport PYTHONDONTWRITEBYTECODE
PARALLEL := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# For each of three dozen targets: so many inputs, or so much of the processor's time [s].
FUZZ_INPUTS ?= 1000000
FUZZ_CPU_SEC ?= 120

.PHONY: venv demo test test-quick check fuzz chaos docs format bench bench-quick protos clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[tune,metrics,tflite,compare-models,cross,cuda,cuda-build,postgres,dask,web,dev,docs]'
	touch $@

LINKER = $(shell command -v cc ld.lld lld clang)

# What the demo needs, of what `venv` installs; a linker only where there is none. Python 3.11 puts a setuptools into every
# environment, and compiles its pip: together 17 MB that the demo does without.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -e $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@test -e $(VENV)/.installed || echo "installing TVM, ONNX Runtime and what they need into $(VENV), once: $(if $(LINKER),691 MB,1.1 GB; of these 410 MB are zig, since there is neither gcc nor lld here)"
	$(PIP_INSTALL) --no-compile --editable '.[tune,compare$(if $(LINKER),,$(comma)cross)]'
	test -e $(VENV)/.installed || $(BIN)/python -m pip uninstall -qq --yes setuptools
	test -e $(VENV)/.installed || find $(VENV) -name __pycache__ -prune -exec rm -r {} +
	touch $@

demo: $(VENV)/.demo  ## tune the costliest operators of SqueezeNet on this machine and show what was gained
	$(BIN)/python scripts/demo.py

# A test that fails is run once more, and listed as RERUN: machines of CI vary in load. Find its race and repair it.
# Their tests must not be skipped: `test_packages.py` installs these programs.
test: export FLEET_TESTS_PROMISED = avahi-daemon,chromedriver,gcc,iptables,postgres,prometheus,promtool,qemu-aarch64-static,skopeo
test:  ## the whole suite; installs the Debian packages that it needs, or says how
	$(PYTHON) scripts/test_packages.py
	$(MAKE) --no-print-directory venv
	$(BIN)/python -m tests.emulated.sysroot
	$(PARALLEL) -m 'not measures' --reruns 1 -r fER
	$(BIN)/python -m pytest -m measures --reruns 1 -r fER $$(grep -rl --include='test_*.py' mark.measures tests)
	$(BIN)/python scripts/package_check.py
	$(BIN)/python scripts/python_tiers.py torch
	$(BIN)/python scripts/python_tiers.py pythons

test-quick: venv  ## unit and contract tests without the slow ones, for the edit loop
	$(PARALLEL) -m 'not slow and not measures' tests/unit tests/contract

check: venv docs  ## format, lint, types, imports, generated code, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python protos/generate.py --check

fuzz: venv  ## very many inputs for every port and every file that others write; two minutes for each at most
	$(PIP_INSTALL) --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS) --cpu-sec $(FUZZ_CPU_SEC)

chaos: venv  ## faults for so long (MINUTES=60 SEED=1 STANDBY=1), then the proof from the logs; CI has two minutes of it
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(STANDBY),--standby)

docs: venv  ## the documentation as a site, build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

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
