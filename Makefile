# Everything a person does here. `make serve` and `make test` need nothing but Python 3.11+, make
# and a C++ compiler: they set up the rest in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve mock test check format kernels test-kernels clean
.PHONY: bench-serve bench-proxy bench-optimizer bench-kernels

serve: $(VENV)/serve.stamp
	$(BIN)/python scripts/serve.py

mock: $(VENV)/serve.stamp
	$(BIN)/python scripts/serve.py --mock

test: $(VENV)/dev.stamp check
	scripts/need_packages.sh redis-server
	$(BIN)/python -m pytest

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

kernels: $(VENV)/serve.stamp
	$(BIN)/python -m inference_api.kernels.build

# The kernels under the address, undefined-behaviour and thread sanitizers.
test-kernels: $(VENV)/dev.stamp
	$(BIN)/python -m inference_api.kernels.sanitize

bench-serve: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarking.bench_serve

bench-proxy: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarking.bench_proxy

bench-optimizer: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarking.bench_optimizer

bench-kernels: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarking.bench_kernels

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hearth needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "No virtual environment could be made; on Debian: sudo apt-get install python3-venv"; exit 1; }
	@touch $@

$(VENV)/serve.stamp: $(VENV)/python.stamp requirements.txt
	$(BIN)/python -m pip install --quiet -r requirements.txt
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp requirements-dev.txt
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

clean:
	rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache .hypothesis
