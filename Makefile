# make help lists all commands. Each installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: help demo test docs soak gpu-test bench gpu-bench bench-cpu lint format types imports spelling check build clean

help:  ## List all commands
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: .venv/demo.stamp  ## Solve two batches on the CPU, show what was removed, draw it
	$(BIN)/drain demo --out demo.png

test: .venv/test.stamp  ## Run all tests
	$(BIN)/python -m pytest -n auto

# Warnings, such as broken links, are errors. Read it with: python3 -m http.server --directory site
docs: .venv/docs.stamp  ## Build the site of the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Hostile problems by the thousand, and other tests at full length; hours where Triton's interpreter is slow. Every run
# has a seed of its own, which it prints; make soak SEED=1 repeats one.
soak: .venv/test.stamp  ## Solve thousands of hostile problems and audit every result; SEED=1 repeats a run
	@seed=$${SEED:-$$($(BIN)/python -c 'import secrets; print(secrets.randbelow(2**31))')}; status=0; \
	echo "make soak SEED=$$seed"; \
	for job in "cpu 10000" "cpu 2000 --frugal" "triton 500" "ott 500" "keops 500"; do set -- $$job; \
	  $(BIN)/python -m drainsinkhorn.testing.soak --backend $$1 --problems $$2 --seed $$seed $$3 || status=1; done; \
	DRAIN_SOAK=1 $(BIN)/python -m pytest -q -n auto tests/run/test_journal*.py tests/backends/test_bitwise.py \
	  tests/backends/ottjax/test_contract.py || status=1; exit $$status

# On a machine with a CUDA device: with the Python at hand, which has torch, triton and pytest; nothing is installed.
gpu-test:  ## Run the tests of the GPU backend with the Python at hand; nothing is installed
	PYTHONPATH=src $(PYTHON) -m pytest -q -p no:cacheprovider tests/backends/triton

# Every campaign at small scale, then the report; a run that was stopped goes on when make bench is run again.
# make bench DATA=folder reads real data; SECONDS=500 stops cleanly before that; SCALE=full has the paper's sizes.
SCALE ?= small
BENCH ?= bench-runs
bench: .venv/test.stamp  ## Run every campaign at small scale and write the report; DATA=, SECONDS=, SCALE=full
	$(BIN)/drain bench run --scale $(SCALE) --out $(BENCH) $(if $(DATA),--data $(DATA)) $(if $(SECONDS),--seconds $(SECONDS))
	$(BIN)/drain bench report $(BENCH)

# The same where nothing can be installed: with the Python at hand, which has torch and triton.
gpu-bench:  ## Run campaigns on a CUDA device with the Python at hand; nothing is installed
	PYTHONPATH=src:bench/src $(PYTHON) benchmarks/campaigns.py --scale $(SCALE) --out $(BENCH) --device cuda --report \
	  $(if $(DATA),--data $(DATA)) $(if $(SECONDS),--seconds $(SECONDS))

# A few minutes: the generated workloads against the fastest peer. benchmarks/cpu_peers.py --help tells more.
bench-cpu: .venv/test.stamp  ## Compare the CPU backend with the fastest peer, for a few minutes
	$(BIN)/python benchmarks/cpu_peers.py --workloads clouds3 clouds50 shared tiny --arms ours ott-serial --seconds 10

check: lint types imports spelling  ## Check format, lint, types, import rules and spelling

lint: .venv/lint.stamp  ## Check format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: .venv/lint.stamp  ## Format the source and mend lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Types of optional libraries are checked too, so everything is installed.
types: .venv/lint.stamp .venv/test.stamp  ## Check types
	$(BIN)/pyright

imports: .venv/lint.stamp  ## Check which room imports which
	$(BIN)/lint-imports

spelling: .venv/lint.stamp  ## Check spelling
	$(BIN)/codespell

# Wheels and source archives of both distributions. The wheels are installed and used in a clean environment.
build: .venv/lint.stamp .venv/test.stamp  ## Build both distributions into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist bench
	$(BIN)/twine check --strict dist/*
	DRAIN_DIST=dist $(BIN)/python -m pytest -q tests/release

clean:  ## Remove .venv, the site, built distributions and pictures of the demo
	rm -rf .venv site dist demo*.png  # bench-runs is kept: raw files are measurements

.venv/created.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  (echo "drainsinkhorn needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1)
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo.stamp: .venv/created.stamp pyproject.toml bench/pyproject.toml
	$(PIP) -e '.[demo]' -e ./bench
	touch $@

# torch is pinned so that every machine tests the same one; users may have any torch >= 2.5. torchcfm is tested against,
# without its many dependencies, of which the parts that are used need none.
.venv/test.stamp: .venv/created.stamp pyproject.toml bench/pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) -e '.[test]' -e ./bench
	$(PIP) --no-deps torchcfm==1.0.7
	touch $@

.venv/docs.stamp: .venv/created.stamp pyproject.toml
	$(PIP) -e '.[docs]'
	touch $@

.venv/lint.stamp: .venv/created.stamp pyproject.toml bench/pyproject.toml
	$(PIP) -e '.[lint]' -e ./bench
	touch $@
