# Every target works on a machine with nothing but Python 3.11+ and pip: the
# first one called makes .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-versions slow fuzz lint format build check exhaust verify report accuracy bench docs wheels clean
.DEFAULT_GOAL := help
# Tests start many processes: each reads compiled modules where it may, a quarter of the time of tests/test_build.py.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo    train a network, and draw its uncertainty with error bars beside Monte Carlo"
	@echo "make test    the fast test suite"
	@echo "make test-versions  the fast tests of networks and ops on the newest torch that pyproject.toml allows"
	@echo "make slow    the exhaustive tests (many minutes)"
	@echo "make fuzz    random networks by every method against sampling: COUNT=1000 of them from START=0"
	@echo "make lint    ruff, mypy, and the English of pages and docstrings"
	@echo "make build   rules/ -> generated/"
	@echo "make check   is generated/ fresh?"
	@echo "make exhaust all float32 means through the kernels (half an hour on 2 cores), into rules/evidence/"
	@echo "make verify  the committed certificates, measured again"
	@echo "make report  all rules as one page, report.html"
	@echo "make accuracy the certificates as tables, into docs/accuracy.md and docs/relative-errors.md"
	@echo "make wheels  into dist/: a wheel of this platform with compiled kernels; into dist/any/: the sources, and one for all platforms"
	@echo "make docs    the site, into site/; runs the code of every page and checks every link"
	@echo "make bench   timings, into benchmarks/results/"

# torch goes first and alone: where its build brings a triton of its own, that
# triton is kept and the pin of constraints.txt is left out.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "momentgen needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install "$$(grep '^torch==' constraints.txt)"
	if $(BIN)/pip show --quiet triton 2>/dev/null; then grep -v '^triton==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	$(BIN)/pip install -c $(VENV)/constraints.txt -e '.[dev,examples]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/digits_noise.py

# The tests of a file share what they build, so one worker takes them all.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The oldest torch of the range in pyproject.toml is that of constraints.txt, on which `make test` runs; this is the newest.
# What torch brings or pins itself (triton, setuptools, ...) is left as it is, and so is the torchvision that fits it.
TORCH_NEW := 2.14.1
NEW := .venv-torch-$(TORCH_NEW)
$(NEW)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEW)
	$(NEW)/bin/pip install torch==$(TORCH_NEW)
	$(NEW)/bin/pip list --format=freeze | sed 's/==.*//; s/_/-/g; s/.*/^&==/' > $(NEW)/installed
	grep -v '^torchvision==' constraints.txt | grep -vif $(NEW)/installed > $(NEW)/constraints.txt
	$(NEW)/bin/pip install -c $(NEW)/constraints.txt torch==$(TORCH_NEW) -e '.[dev]'
	touch $@

# What these ask does not depend on torch: words, C compilers, wheels, mathematics, scikit-learn's conventions.
SAME := $(addprefix --ignore=tests/runtime/test_,shipped.py toolchain.py words.py) \
	$(addprefix --ignore=tests/inference/test_,calibration.py every_estimator.py \
	polya_gamma_law.py regressor_conveniences.py)
test-versions: $(NEW)/.ready
	$(NEW)/bin/python -m pytest -n 2 --dist loadfile tests/laws tests/nn tests/runtime tests/inference $(SAME)

slow: $(READY)
	$(BIN)/python -m pytest -m slow --timeout 14400

COUNT ?= 1000
START ?= 0
PROCESSES ?= 1
OUT ?= fuzz.json
fuzz: $(READY)
	cd tests && ../$(BIN)/python -m fuzz --count $(COUNT) --start $(START) --processes $(PROCESSES) --out $(OUT)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/hooks
	$(BIN)/python tests/english.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(READY)
	$(BIN)/momentgen build rules/

check: $(READY)
	$(BIN)/momentgen build rules/ --check

# What it finds enters the certificates with the next build.
exhaust: $(READY)
	$(BIN)/python benchmarks/exhaust.py
	$(BIN)/momentgen build rules/

verify: $(READY)
	$(BIN)/momentgen verify rules/

report: $(READY)
	$(BIN)/momentgen report rules/

accuracy: $(READY)
	$(BIN)/python benchmarks/accuracy.py

bench: $(READY)
	$(BIN)/python benchmarks/build_time.py
	$(BIN)/python benchmarks/cpu_ops.py
	$(BIN)/python benchmarks/layer_share.py
	$(BIN)/python benchmarks/instructions.py
	$(BIN)/python benchmarks/polya_gamma.py

# pip takes the wheel of its platform where there is one.
wheels: $(READY)
	rm -rf build dist
	$(BIN)/python -m build --outdir dist/any
	MOMENTGEN_KERNELS=1 $(BIN)/python -m build --wheel --outdir dist
	$(BIN)/twine check --strict dist/*.whl dist/any/*

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict  # threads would wait for each other: networks are small

clean:
	rm -rf $(VENV) .venv-torch-* .cache build dist site demo-out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
