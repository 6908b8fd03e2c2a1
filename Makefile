# Needs only Python 3.11+, make and git: the first target that is run makes .venv and installs what the lock names.
#
#   make demo    optimize a few models of the zoo, verified, and show a table
#   make test    ruff, mypy and the tests
#   make lint    ruff and mypy
#   make bars    the acceptance bars with today's figures, kept by processor; DATA=folder for those that need outside models
#   make bench   the slow sweeps, each with its full tables; DATA=folder as above
#   make bench-ort   latency of what --target ort writes in ONNX Runtime, on one core
#   make bench-kernels   kernels beside ONNX Runtime and the machine's peak, on one core
#   make bench-native    whole programs beside ONNX Runtime and OpenVINO, kept in docs/benchmarks and drawn in docs/speed.md
#   make bench-memory    memory plans beside their bounds and ONNX Runtime; DATA=folder of packing problems
#   make bench-scheduling    schedules beside their bounds, the verifier beside brute force; DATA=folder as above
#   make bench-real   trained models out of packages: optimized, planned and compiled, beside onnxslim and onnxsim
#   make site    the documentation as a site with a search, in build/site/pages
#   make qemu    fetch emulators: tests then run kernels for ARM, microcontrollers and RISC-V, and bundles on older x86-64 (Debian, Ubuntu)
#   make clean   remove what the other targets made

PYTHON ?= python3
DATA ?=
VENV := .venv
BENCH_VENV := .venv-bench
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH_VENV)/.installed
DATA_OPTION = $(if $(DATA),--data $(DATA))

.PHONY: demo test lint bench bench-ort bench-kernels bench-native bench-memory bench-scheduling bench-real bars site qemu clean

# No recipe runs beside another: ruff, mypy and pytest each use every core, and the tests' summary shall come last.
.NOTPARALLEL:

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	touch $@

$(BENCH_STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,bench]'
	touch $@

demo: $(STAMP)
	$(VENV)/bin/python -m models.demo

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

test: lint
	$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

bars: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m bench.bars --keep $(DATA_OPTION)

bench: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.light --json build/bench/light.json
	$(BENCH_VENV)/bin/python -m bench.zoo --json build/bench/zoo.json
	$(BENCH_VENV)/bin/python -m bench.node_tests --json build/bench/node_tests.json
	$(BENCH_VENV)/bin/python -m bench.scale --json build/bench/scale.json
	$(BENCH_VENV)/bin/python -m bench.random_models --json build/bench/random_models.json
	$(BENCH_VENV)/bin/python -m bench.layout --json build/bench/layout.json
	$(BENCH_VENV)/bin/python -m bench.attention --json build/bench/attention.json
	$(BENCH_VENV)/bin/python -m bench.recurrent --json build/bench/recurrent.json
	$(BENCH_VENV)/bin/python -m bench.quantized --json build/bench/quantized.json
	$(BENCH_VENV)/bin/python -m bench.speed --json build/bench/speed.json
	$(BENCH_VENV)/bin/python -m bench.kills
	$(BENCH_VENV)/bin/python -m bench.mutants --json build/bench/mutants.json
	$(BENCH_VENV)/bin/python -m bench.capabilities $(DATA_OPTION) --json build/bench/capabilities.json
	$(if $(DATA),$(BENCH_VENV)/bin/python -m bench.ort_models $(DATA_OPTION) --json build/bench/ort_models.json)

bench-ort: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.ort_latency --json build/bench/ort_latency.json

bench-kernels: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.kernels.all --json build/bench/kernels.json

bench-native: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m bench.native
	$(BENCH_VENV)/bin/python -m bench.native_page > docs/speed.md

bench-memory: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.memory.all $(DATA_OPTION) --json build/bench/memory.json

bench-scheduling: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.scheduling.all $(DATA_OPTION) --json build/bench/scheduling.json

bench-real: $(BENCH_STAMP)
	mkdir -p build/bench
	$(BENCH_VENV)/bin/python -m bench.real --json build/bench/real.json

site: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[site]'
	rm -rf build/site
	mkdir -p build/site/source/models
	cp -r README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs build/site/source
	cp models/README.md build/site/source/models
	$(VENV)/bin/mkdocs build --quiet --strict

build/qemu:
	mkdir -p build/qemu.part
	cd build/qemu.part && (apt-get download qemu-user-static || (apt-get update && apt-get download qemu-user-static)) && dpkg -x qemu-user-static_*.deb .
	rm build/qemu.part/qemu-user-static_*.deb
	mv build/qemu.part $@

qemu: build/qemu

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
