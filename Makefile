# The first two targets do all the set-up on a fresh machine: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= out/demo

.PHONY: setup demo test test-oldest lint bench docs figures reproduce clean

setup: .venv/.installed

# pip would compile the packages on one core
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@echo 'installing packages into .venv, which takes a few minutes the first time'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,docs]'
	$(BIN)/python -W ignore -m compileall -q -q -j 0 .venv/lib src || true  # some packages carry files of newer Pythons
	touch $@

demo: setup
	$(BIN)/avuc demo --out $(OUT)

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# the suite with the oldest versions that pyproject.toml allows; tests of libraries that are not installed skip. Downloads
# several GB: the registry has these versions of torch for CUDA only. A part of it: make test-oldest TESTS=tests/losses
OLDEST := .venv-oldest/bin
test-oldest: .venv-oldest/.installed
	OMP_NUM_THREADS=1 $(OLDEST)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[oldest]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# every speed claim; the runs are kept in benchmarks/results and shown in docs/benchmarks.md. One that fails (a library that
# it measures against is missing, or a goal is missed) does not stop the others.
bench: setup
	failed=; for file in benchmarks/bench_*.py; do $(BIN)/python benchmarks/record.py $$file || failed="$$failed $$file"; done; \
	$(BIN)/python docs/make_benchmarks.py && { test -z "$$failed" || { echo "failed:$$failed"; exit 1; }; }

# the documentation as a folder of pages, site/index.html; a warning is an error
docs: setup
	$(BIN)/python docs/make_gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# the figures and tables in docs/
figures: setup
	for file in docs/make_*.py; do $(BIN)/python $$file || exit 1; done

# Run all published studies again and rebuild docs/reproduction/*.md, from CIFAR-10:
#   make reproduce DATA=FOLDER [OUT=out/reproduce] [OOD='["svhn", "cifar100", "textures.npy"]'] [MINUTES=60]
# DATA holds cifar-10-batches-py. Other data sets are read from $$AVUC_DATA or downloaded. Stop it at any time: the same
# command continues. With MINUTES, each study stops after that time with exit code 75. It is meant for one data-centre GPU
# (docs/reproduction/tables.md, "What it took"); on a CPU it takes weeks ('avuc study cifar10-paper --dry-run' estimates it).
# BIN=FOLDER uses the python in that folder and installs nothing. CHANGES='--set train.epochs=1 ...' is passed to every study.
# If you change study.shifts, keep gaussian_blur and shot_noise: the pages quote numbers of both. SVHN=svhn-test.npy, uint8
# (N, 32, 32, 3), also reads the trained models of cifar10-code in 13 ways (results/cifar10/code/svhn.csv).
STUDIES := $(if $(findstring command,$(origin OUT)),$(OUT),out/reproduce)

# With STUDY=NAME, one of the studies beyond CIFAR (reproduction/studies; docs/studies/index.md); DATA holds its data:
#   make reproduce STUDY=camvid DATA=FOLDER [OUT=out/studies/camvid] [MINUTES=8] [CHANGES='--set train.epochs=1']
# STUDY=language-models: DATA holds clones of the repositories that reproduction/README.md names. STUDY=uncertain-trap and wrong-labels need none.
LANGUAGE := $(if $(findstring command,$(origin OUT)),$(OUT),out/studies/language-models)
ifeq ($(STUDY),language-models)
reproduce: $(if $(findstring command,$(origin BIN)),,setup)
	@test -n "$(DATA)" || { echo "make reproduce STUDY=$(STUDY) DATA=FOLDER: name the folder of the clones"; exit 2; }
	$(BIN)/python reproduction/language_models.py texts "$(DATA)" "$(LANGUAGE)/texts"
	$(BIN)/python reproduction/language_models.py tokens "$(LANGUAGE)/texts" "$(LANGUAGE)/tokens"
	$(BIN)/python reproduction/language_models.py all "$(LANGUAGE)/tokens" "$(LANGUAGE)/runs" $(CHANGES)
	$(BIN)/python reproduction/language_models.py table "$(LANGUAGE)/runs" reproduction/results/language-models
	$(BIN)/python reproduction/pages/make_language_models.py
else ifeq ($(STUDY),uncertain-trap)
reproduce: $(if $(findstring command,$(origin BIN)),,setup)
	$(BIN)/python reproduction/uncertain_trap.py
else ifeq ($(STUDY),wrong-labels)
reproduce: $(if $(findstring command,$(origin BIN)),,setup)
	$(BIN)/python reproduction/wrong_labels.py
else ifdef STUDY
reproduce: $(if $(findstring command,$(origin BIN)),,setup)
	@test -n "$(DATA)" || { echo "make reproduce STUDY=$(STUDY) DATA=FOLDER: name the folder of the data"; exit 2; }
	$(BIN)/python reproduction/run_study.py "$(STUDY)" --data "$(DATA)" \
	  $(if $(findstring command,$(origin OUT)),--out "$(OUT)") $(if $(MINUTES),--minutes $(MINUTES)) -- $(CHANGES)
else
reproduce: $(if $(findstring command,$(origin BIN)),,setup)
	@test -n "$(DATA)" || { echo "make reproduce DATA=FOLDER: name the folder that holds cifar-10-batches-py"; exit 2; }
	PYTHONPATH=src:reproduction $(BIN)/python reproduction/run_all.py --data "$(DATA)" --out "$(STUDIES)" \
	  $(if $(OOD),--ood '$(OOD)') $(if $(MINUTES),--minutes $(MINUTES)) -- $(CHANGES)
	$(BIN)/python reproduction/publish.py "$(STUDIES)" reproduction/results/cifar10
	$(if $(SVHN),$(BIN)/python reproduction/svhn_readings.py "$(STUDIES)/code" --svhn "$(SVHN)" --set data.root="$(DATA)" \
	  --out reproduction/results/cifar10/code/svhn.csv)
	$(BIN)/python reproduction/pages/make_reproduction.py
endif

clean:
	rm -rf out dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
