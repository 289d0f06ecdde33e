PYTHON ?= python3
PRESET ?= quick
DEVICE ?= auto
RESULTS ?= results/$(PRESET)
BIN := .venv/bin
READY := .venv/.ready
# Threads that wait by spinning slow a busy machine down many times over.
export OMP_WAIT_POLICY ?= PASSIVE
# IPython warns, and a test fails, if the environment that is active is not this one.
unexport VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow test-book test-gpu lint types notebooks all-notebooks book pages rerun page bench dist try-dist explorer clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'dpsub needs Python 3.11 or newer: make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[notebooks,book,cluster,dev,embeddings]'
	touch $@

quickstart: $(READY)  ## audit 2,500 models on digits and show the result (about a minute after installing)
	$(BIN)/python book/run.py quickstart --show

test: $(READY)  ## the tests, without the slow ones
	$(BIN)/python -m pytest

test-slow: $(READY)  ## the tests marked slow
	$(BIN)/python -m pytest -m slow

test-book: $(READY)  ## the tests that look at the explorers, the built book and JupyterLab in a browser
	$(BIN)/python -m pytest -m "book and not slow" --dist load

test-gpu: $(READY)  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu -n 0 $$(grep -rl --include="*.py" "pytest.mark.gpu" tests)

lint: $(READY)  ## ruff, codespell, and notebooks without outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell dpsub studies tests book notebooks benchmarks *.md
	$(BIN)/nbstripout --verify --keep-id --extra-keys cell.metadata.user_expressions notebooks/*.ipynb

types: $(READY)  ## mypy, strict; of the benchmarks, whether the names that they use exist
	$(BIN)/mypy
	$(BIN)/mypy --config-file= --ignore-missing-imports $(foreach code,arg-type assignment call-overload index misc operator return-value,--disable-error-code $(code)) benchmarks

notebooks: $(READY)  ## execute the notebooks that have changed (or ONLY="...") with the quick preset, keeping no audits
	$(BIN)/python book/run.py $(ONLY)

all-notebooks: $(READY)  ## execute every notebook with the quick preset, changed or not
	$(BIN)/python book/run.py --all

rerun: $(READY)  ## execute notebooks with PRESET=quick|laptop|paper DEVICE=auto|cpu|cuda [ONLY="..."], audits kept in RESULTS
	$(BIN)/python book/run.py $(ONLY) --preset $(PRESET) --device $(DEVICE) --results $(RESULTS)

pages: $(READY)  ## build the book (or ONLY="...") from the notebooks as they were last executed
	$(BIN)/python book/build.py $(ONLY)

book: notebooks  ## execute the notebooks that have changed and build the book
	$(BIN)/python book/build.py $(ONLY)

page: book  ## execute and build ONLY="quickstart" as one file of HTML: _build/some/quickstart.html

bench: $(READY)  ## benchmarks against peers, as ratios
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

dist: $(READY)  ## build sdist and wheel into dist/ and check them
	$(BIN)/python .ci/dist.py

VERSIONS ?= newest
try-dist: $(READY)  ## install each file of dist/ into a fresh environment and test it there; VERSIONS=lowest|newest
	$(BIN)/python .ci/try_dist.py $(VERSIONS)

explorer: $(READY)  ## compute the numbers of the page that plans audits anew (ten minutes)
	$(BIN)/python -m book.explorers.run_planning

clean:  ## remove what was built, keep the environment
	rm -rf _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
