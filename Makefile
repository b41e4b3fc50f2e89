# make demo      run examples/quickstart.py on the CPU engine
# make test      lint, type check and test on the CPU engine
# make test-gpu  the suite on a CUDA device, and the validation record
# make bench     the speed table
# make docs      the documentation, in site/
# make wheels    the core and every family, in dist/
# make lint      lint and type check alone
# make clean     remove what the targets built; .venv and .cache stay
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
VENV := .venv/bin
FAMILIES = $(dir $(wildcard nnterp_vllm_families/*/pyproject.toml))

.PHONY: demo test test-gpu bench docs wheels lint clean setup

# Models come from .cache, never from a hub; one gigabyte holds the cache of every test model.
demo test bench: export HF_HUB_OFFLINE = 1
demo test bench: export VLLM_CPU_KVCACHE_SPACE = 1

setup:
	$(PYTHON) scripts/bootstrap.py

demo: setup
	$(VENV)/python scripts/smollm2.py
	$(VENV)/python examples/quickstart.py

lint: setup
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy

test: lint
	$(VENV)/python -m pytest

test-gpu:
	scripts/gpu_tests.sh

bench: setup
	$(VENV)/python benchmarks/run.py

docs: setup
	$(VENV)/python -m pip install --quiet --no-build-isolation --constraint .venv/engine.txt --editable '.[docs]'
	$(VENV)/mkdocs build --strict

# Building needs hatchling alone, so this target does not wait for an engine.
$(VENV)/hatchling:
	$(PYTHON) -m venv .venv
	$(VENV)/python -m pip install --quiet 'hatchling>=1.27'

wheels: $(VENV)/hatchling
	$(VENV)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . $(FAMILIES)
	@ls dist

clean:
	rm -rf dist site .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
