# Everything a person does here. `make serve` needs nothing but Python 3.11+ and make, `make test` a
# C++ compiler too: they set up the rest in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python lab/install.py
INSTALL_UV := install --quiet --no-compile --only-binary :all: -r requirements-uv.txt
unexport PYTHONDONTWRITEBYTECODE

# On a machine with a driver of NVIDIA's, `make serve` adds torch. Tests need torch everywhere; as pip finds
# it, it brings CUDA's libraries along: gigabytes of no use where there is no driver. Such a machine takes
# the build for CPUs once TORCH_INDEX says where to look for it.
NVIDIA := $(wildcard /proc/driver/nvidia/version /dev/dxg)
TORCH_INDEX ?=
CPU_INDEX := $(if $(NVIDIA),,$(TORCH_INDEX))
SERVE_EXTRAS := serve$(if $(NVIDIA),$(shell echo ,)cuda)

.PHONY: serve mock help test all-tests test-lab test-clients test-fast check hooks docs fuzz format packages kernels kernels-if-possible wheels test-kernels test-arm \
  test-arm-wheel cluster-demo fleet-demo image-check first-token new-enough clean

serve:
	@$(MAKE) --silent --jobs=2 $(if $(BUNDLE),$(VENV)/router.stamp,$(VENV)/serve.stamp) kernels-if-possible
	$(BIN)/hearth serve

mock: $(VENV)/serve.stamp
	$(BIN)/hearth serve --mock

# The table of CONTRIBUTING.md.
help:
	@sed -n 's/^| `\(make [^|]*\)` | \(.*\) | .*/\1: \2/p' CONTRIBUTING.md | sed 's/`//g; s/\[\([^]]*\)\]([^)]*)/\1/g'

# Four workers, on two cores, since tests often wait for servers: each takes whole files, so that what
# shares a server stays together, slow ones first, those that compute beside those that wait.
# OpenMP's threads would spin for the core of another worker: there is one, and where a test wants two,
# they sleep.
WORKERS ?= 4
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --workers $(WORKERS)

# With `make -j2 test` the checks run beside the tests.
test: check all-tests

all-tests: $(VENV)/dev.stamp packages kernels
	$(PYTEST) --ignore=tests/lab

# The benches, their peers, the makers of models and the demos: what no server needs.
test-lab: $(VENV)/dev.stamp packages kernels
	$(PYTEST) tests/lab

# Agents and SDKs, unchanged, at a server with a model of random weights: docs/clients.md. Installs each
# in var/clients: a few gigabytes. Options: make test-clients CLIENTS="codex opencode"
test-clients: $(VENV)/node.stamp kernels
	$(BIN)/python -m lab.clients $(CLIENTS)

# What starts no process, no server, browser or Redis, and takes no seconds of computing.
test-fast: $(VENV)/dev.stamp kernels
	$(PYTEST) -m "not slow"

packages: $(VENV)/dev.stamp
	lab/need_packages.sh chromium redis-server prometheus

KERNELS := $(wildcard inference_api/kernels/src/*.h inference_api/kernels/src/*.cpp)
TIDY := nice $(BIN)/run-clang-tidy.py -clang-tidy-binary $(BIN)/clang-tidy -p var/kernels -quiet -hide-progress

# The sources for one instruction set and the test driver take clang-tidy as long as all others: they
# wait for `make test-kernels`. So do the paths that the analyzer would follow beyond so many nodes of
# each function: most of its time is theirs.
SHALLOW := $(addprefix -extra-arg=,-Xclang -analyzer-config -Xclang max-nodes=10000)
# What takes long gives way to the tests, which often wait, where `make -j2 test` runs both.
check: $(VENV)/dev.stamp $(VENV)/node.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	nice $(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
	$(BIN)/python -m lab.kernels.compile_commands
	$(TIDY) $(SHALLOW) 'src/(?!variant_a|test_driver)'
	$(BIN)/node node_modules/.bin/biome check --error-on-warnings
	$(BIN)/node node_modules/.bin/tsc
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose*.yml

# What git then does before each commit and each push: .pre-commit-config.yaml.
hooks: $(VENV)/dev.stamp $(VENV)/node.stamp
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

# The description of the API, and raw bytes, against real servers, and Hypothesis' search for what
# breaks a property: more than `make test` has time for.
fuzz: $(VENV)/dev.stamp packages kernels
	$(PYTEST) --hypothesis-profile=fuzz -m hypothesis
	SCHEMATHESIS_EXAMPLES=$${SCHEMATHESIS_EXAMPLES:-200} RAW_FUZZ_EXAMPLES=$${RAW_FUZZ_EXAMPLES:-20000} \
	  RANDOM_BODIES=$${RANDOM_BODIES:-20000} $(BIN)/python -m pytest \
	  tests/e2e/test_schemathesis.py tests/e2e/test_raw_fuzz.py tests/proxy/test_raw_bytes.py \
	  tests/inference_api/apis/test_routes.py

format: $(VENV)/dev.stamp $(VENV)/node.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(KERNELS)
	$(BIN)/node node_modules/.bin/biome check --write

# The kernels for this processor. Needs no packages: make compiles while it installs, and gives way to
# the install, which more waits for. Where no compiler is installed, one comes as a package.
ZIG := $(if $(shell command -v g++ || command -v clang++ || command -v c++),,$(VENV)/zig.stamp)

kernels: new-enough $(ZIG)
	nice $(if $(ZIG),$(BIN)/python,$(ANY_PYTHON)) -m inference_api.kernels.build $(VARIANTS)

# Tests compare all variants that it can run; servers use one.
all-tests test-lab test-clients test-fast fuzz: VARIANTS := --variants

# Without them a GPU still serves.
kernels-if-possible:
	-@$(MAKE) --silent kernels

# A wheel for each kind of processor, with the kernels for it, and what must be true of both.
wheels: $(VENV)/dev.stamp $(VENV)/zig.stamp
	rm -rf var/wheels
	$(BIN)/python -m inference_api.kernels.build --release var/wheels
	for library in var/wheels/*.so; do \
	  HEARTH_KERNELS=$$library $(BIN)/hatchling build --target wheel --directory var/wheels || exit; done
	$(BIN)/python -m lab.wheels var/wheels

# The kernels under the address, undefined-behaviour and thread sanitizers, and what `make check` has
# left of them to clang-tidy.
test-kernels: $(VENV)/dev.stamp
	$(BIN)/python -m lab.kernels.compile_commands
	$(TIDY) 'src/'
	$(BIN)/python -m lab.kernels.sanitize

# The kernels for ARM on a machine that is none, under qemu-user-static.
test-arm: $(VENV)/dev.stamp $(VENV)/zig.stamp
	$(BIN)/python -m lab.kernels.emulate

# And the wheel for ARM, with a Python for ARM. Options: make test-arm-wheel MODELS="model.gguf folder"
test-arm-wheel: wheels
	$(BIN)/python -m lab.arm var/wheels/*-manylinux2014_aarch64.whl $(MODELS)

# `make bench-serve`, and so on (lab/benches/__main__.py): each prints a table and the machine, and
# leaves both in var/bench. Time one alone; `python -m lab.benches serve --help` lists its options.
bench-%: $(VENV)/dev.stamp
	$(BIN)/python -m lab.benches $*

# Three Ray nodes on this machine, and a load that doubles and comes back, in four minutes
# (docs/cluster.md). Options: make cluster-demo DEMO=--kill-node
cluster-demo: $(VENV)/dev.stamp
	$(BIN)/python -m lab.demo.cluster $(DEMO)

# Hearth, llama.cpp's server and vLLM behind one address, for a day of fifteen minutes (docs/cluster.md):
# alone on the machine. It installs the others in var/peers. Options: make fleet-demo DEMO="--day 300"
fleet-demo: $(VENV)/dev.stamp kernels
	$(BIN)/python -m lab.demo.fleet $(DEMO)

# Without a container engine: docs/install.md. Options: make image-check IMAGES="proxy --base FOLDER"
image-check: $(VENV)/dev.stamp
	$(BIN)/python -m lab.images $(IMAGES)

# From a clone and an empty cache of pip's to the first token, in a scratch folder.
first-token:
	$(PYTHON) lab/first_token.py TORCH_INDEX='$(TORCH_INDEX)'

# What has been set up, or what it will be set up with.
ANY_PYTHON := $(if $(wildcard $(VENV)/python.stamp),$(BIN)/python,$(PYTHON))

new-enough:
	@$(ANY_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hearth needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3.11"; exit 1; }

$(VENV)/python.stamp: | new-enough
	@$(PYTHON) -m venv --without-pip $(VENV)
	@touch $@

# By the pip of the Python at hand, where it has one: ensurepip would take seconds, since it compiles what
# it installs. Where there is no uv for this machine, pip does it all.
$(VENV)/uv.stamp: $(VENV)/python.stamp requirements-uv.txt
	@! $(PYTHON) -c 'import pip' 2>/dev/null || $(PYTHON) -m pip --python $(BIN)/python $(INSTALL_UV) || true
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV) || \
	  { echo "Could not create a virtual environment; on Debian: sudo apt-get install python3-venv"; exit 1; }
	-@test -x $(BIN)/uv || $(BIN)/python -m pip $(INSTALL_UV)
	@touch $@

$(VENV)/zig.stamp: $(VENV)/uv.stamp requirements-wheels.txt
	$(INSTALL) -r requirements-wheels.txt
	@touch $@

$(VENV)/serve.stamp: $(VENV)/uv.stamp pyproject.toml requirements-core.txt requirements-serve.txt \
  requirements-cuda.txt
	$(INSTALL) --editable '.[$(SERVE_EXTRAS)]'
	@touch $@

# A bundle may have a router.
$(VENV)/router.stamp: $(VENV)/serve.stamp requirements-router.txt
	$(INSTALL) -r requirements-router.txt
	@touch $@

# Only torch is looked for on a further index.
$(VENV)/dev.stamp: $(VENV)/serve.stamp $(wildcard requirements*.txt)
	@test -n "$(NVIDIA)$(TORCH_INDEX)" || \
	  echo "Found no NVIDIA driver. To skip gigabytes of CUDA libraries: make TORCH_INDEX=ADDRESS (docs/install.md)"
	$(INSTALL) $(if $(CPU_INDEX),--extra-index-url '$(CPU_INDEX)') -r requirements-cuda.txt
	$(INSTALL) -r requirements-dev.txt
	@touch $@

# Node comes as a wheel, and what runs on it by npm, as package-lock.json has it.
$(VENV)/node.stamp: $(VENV)/dev.stamp package.json package-lock.json
	NODE_DISABLE_COMPILE_CACHE=1 $(BIN)/npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# The pages of docs/ as a site, in var/site.
docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) node_modules var .mypy_cache .ruff_cache .pytest_cache .hypothesis
