# make help says what there is. Stamp files let a second run skip what is done.

PYTHON ?= python3
VENV := .venv
VENV_211 := .venv-torch211
VENV_PLAIN := .venv-plain
PY := $(VENV)/bin/python
CONSTRAINTS := -c requirements/constraints.txt

# What a wheel is made of.
SOURCES := $(shell find src python build cuda -type f -not -name '*.so' -not -name '*.pyc' 2>/dev/null) \
	Cargo.toml Cargo.lock pyproject.toml build.rs build_wheel.py install_wheel.py $(wildcard tools/*.py)
C_FILES := $(shell find src cuda -name '*.c' -o -name '*.h' -o -name '*.inl' -o -name '*.cpp' -o -name '*.cu' 2>/dev/null)
FEATURE_SETS := "" parallel torch python

# For cargo: which Python, and with it which Torch, is built for.
CARGO_ENV := PYO3_PYTHON=$(abspath $(PY)) MM_TORCH_PYTHON=$(abspath $(PY))
TORCH_LIB = $(shell $(PY) -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])")/lib
PYTEST_ENV := MM_TEST_INSTALLED=1 MM_PLAIN_PYTHON=$(abspath $(VENV_PLAIN)/bin/python)

# make demo: two photographs, or IMAGE=path
IMAGE ?=
PHOTOS := demo/photos/rocket.jpg demo/photos/astronaut.png
DEMO_IMAGES = $(if $(IMAGE),"$(IMAGE)",$(PHOTOS))
SHOWN_IMAGE = $(if $(IMAGE),"$(IMAGE)",$(lastword $(PHOTOS)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test test-all rust-test arm-test lint format bench wheel develop clean clean-all
.DELETE_ON_ERROR:

help:
	@echo 'make demo      build and install a wheel, encode a photograph on the CPU (IMAGE=path for your own)'
	@echo 'make test      Rust tests, and Python tests against the installed wheel'
	@echo 'make test-all  the same with the slow ones, and once more under the oldest supported Torch'
	@echo 'make arm-test  the Rust tests for 64-bit Arm under emulation, or why they are not run'
	@echo 'make lint      rustfmt, clippy, ruff, mypy, clang-format'
	@echo 'make format    let the formatters write'
	@echo 'make bench     every figure beside its peer'
	@echo 'make wheel     only the wheel: dist/<runtime-key>/'
	@echo 'make develop   maturin develop into $(VENV): edit Python files in place'
	@echo 'make clean     remove what was built; clean-all: the environments too'
	@echo 'PYTHON=path    the Python (3.11 or newer) that the environments are made from, now $(PYTHON)'

# Environments

target/.prerequisites: tools/prerequisites.sh
	sh tools/prerequisites.sh $(PYTHON)
	@mkdir -p target && touch $@

$(VENV)/.ready: requirements/constraints.txt requirements/build.txt requirements/test.txt requirements/lint.txt \
		| target/.prerequisites
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q $(CONSTRAINTS) -r requirements/build.txt -r requirements/test.txt -r requirements/lint.txt
	@touch $@

$(VENV_211)/.ready: requirements/torch211.txt | target/.prerequisites
	$(PYTHON) -m venv $(VENV_211)
	$(VENV_211)/bin/python -m pip install -q -r requirements/torch211.txt
	@touch $@

$(VENV_PLAIN)/.ready: requirements/constraints.txt | target/.prerequisites
	$(PYTHON) -m venv $(VENV_PLAIN)
	$(VENV_PLAIN)/bin/python -m pip install -q $(CONSTRAINTS) numpy
	@touch $@

# The wheel, and where it is installed

dist/.stable: $(SOURCES) $(VENV)/.ready
	rm -rf dist/torch-stable-*
	$(PY) build_wheel.py
	@touch $@

wheel: dist/.stable

$(VENV)/.wheel: dist/.stable
	$(PY) install_wheel.py dist/torch-stable-*
	@touch $@

$(VENV_211)/.wheel: dist/.stable $(VENV_211)/.ready
	$(PY) install_wheel.py dist/torch-stable-* --python $(VENV_211)/bin/python
	@touch $@

# install_wheel.py rightly refuses a Python without Torch.
$(VENV_PLAIN)/.wheel: dist/.stable $(VENV_PLAIN)/.ready
	$(VENV_PLAIN)/bin/python -m pip install -q --no-deps --no-index --force-reinstall dist/torch-stable-*/*.whl
	@touch $@

develop: $(VENV)/.ready
	rm -f $(VENV)/.wheel
	$(CARGO_ENV) VIRTUAL_ENV=$(abspath $(VENV)) PATH="$(abspath $(VENV))/bin:$$PATH" maturin develop --locked

# Demo

$(PHOTOS) &: tools/demo_photos.py $(VENV)/.ready
	$(PY) tools/demo_photos.py demo/photos
	@touch $(PHOTOS)

demo/checkpoint/config.json: $(VENV)/.wheel
	rm -rf demo/checkpoint
	$(VENV)/bin/mm-encoder make-checkpoint qwen35 demo/checkpoint
	@touch $@

demo: demo/checkpoint/config.json $(if $(IMAGE),,$(PHOTOS))
	$(VENV)/bin/mm-encoder encode demo/checkpoint $(DEMO_IMAGES) --device cpu --out demo/embeddings.safetensors
	$(VENV)/bin/mm-encoder show demo/checkpoint $(SHOWN_IMAGE) --device cpu --out demo/embeddings.png

# Checks

rust-test: $(VENV)/.ready
	$(CARGO_ENV) cargo test --locked
	$(CARGO_ENV) LD_LIBRARY_PATH=$(TORCH_LIB) cargo test --locked --features parallel,torch

test: rust-test $(VENV)/.wheel $(VENV_PLAIN)/.wheel
	$(PYTEST_ENV) $(VENV)/bin/pytest -m "not slow and not gpu"

test-all: rust-test $(VENV)/.wheel $(VENV_PLAIN)/.wheel $(VENV_211)/.wheel
	$(PYTEST_ENV) $(VENV)/bin/pytest -m "not gpu"
	$(PYTEST_ENV) $(VENV_211)/bin/pytest -m "not gpu"

arm-test:
	sh tools/arm_test.sh

lint: $(VENV)/.ready
	cargo fmt --check
	for features in $(FEATURE_SETS); do \
		echo "clippy, features: $${features:-none}"; \
		$(CARGO_ENV) cargo clippy --locked --all-targets --features "$$features" -- -D warnings || exit 1; \
	done
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --explicit-package-bases build_wheel.py install_wheel.py tools
	$(if $(C_FILES),$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES))

format: $(VENV)/.ready
	cargo fmt
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(if $(C_FILES),$(VENV)/bin/clang-format -i $(C_FILES))

# Peers that cannot be had are named in the report.
target/bench-peers/.ready: requirements/bench-peers.txt $(VENV)/.ready
	rm -rf target/bench-peers
	mkdir -p target/bench-peers
	-$(PY) -m pip install -q --no-deps --target target/bench-peers -r requirements/bench-peers.txt
	@touch $@

bench: $(VENV)/.wheel target/bench-peers/.ready
	MM_BENCH_PEERS=$(abspath target/bench-peers) $(PY) benches/run.py

clean:
	rm -rf target dist demo python/mm_libtorch_encoder/*.so
	rm -f $(VENV)/.wheel $(VENV_211)/.wheel $(VENV_PLAIN)/.wheel

clean-all: clean
	rm -rf $(VENV) $(VENV_211) $(VENV_PLAIN)
