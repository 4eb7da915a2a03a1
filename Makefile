# The first two targets do all the set-up on a fresh machine: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= out/demo

.PHONY: setup demo test lint bench docs clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/avuc demo --out $(OUT)

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

# the figures of docs/*.md
docs: setup
	for file in docs/make_*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
