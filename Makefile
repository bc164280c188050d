# Every target works from a clean clone with Python 3.11 and make; nothing needs an activated environment.
.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-engines lint dev docs bench leaderboard clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
# As a variable and not as `-c`, so that the isolated build of the package is pinned as well.
PIP := PIP_CONSTRAINT=constraints.txt $(PY) -m pip install --quiet --no-input --disable-pip-version-check
EXTRAS := train,live,scale,dev
# One thread of torch per process: more only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest
MKDOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
# One process per core; they share one compiled core, which is therefore compiled before they start.
WORKERS ?= auto
WARM_UP := $(PY) -c "from disaggroute.training.compilation import compile_all; compile_all(print, interactive=True)"

# An environment that was made in another folder points there: make it again.
ifneq ($(wildcard $(VENV)/.home),)
ifneq ($(shell cat $(VENV)/.home),$(CURDIR))
$(shell rm -f $(VENV)/.home $(VENV)/.base $(VENV)/.full)
endif
endif

help:
	@echo "make demo       evaluate the baselines on the study's scenario: a table, figures and a page"
	@echo "make test       run the test suite"
	@echo "make test-long  run the tests that take minutes; the last of them install vLLM and NIXL as below"
	@echo "make test-engines  install vLLM and NIXL for the CPU into .engines and run the tests that need them"
	@echo "make lint       ruff, mypy --strict, and the documentation with warnings as errors"
	@echo "make dev        install every extra (but engines) and prepare the tree for editors"
	@echo "make docs       build the documentation into site/"
	@echo "make bench      measure the speed of the simulator"
	@echo "make leaderboard  run the suite, update what is best known, and write docs/leaderboard.md (DATA=folder of traces)"
	@echo "make clean      remove what the other targets made, the environment included"

demo: $(VENV)/.base
	$(PY) -m disaggroute evaluate mixed-bursty-a40 --topology 2P4D

test: $(VENV)/.full
	$(WARM_UP)
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal

test-long: $(VENV)/.full
	$(WARM_UP)
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal -m 'long and not engines' --hypothesis-profile long
	$(PY) -m disaggroute live install-engines --cpu
	$(PYTEST) -n $(WORKERS) --maxprocesses 4 --dist worksteal -m 'long and engines' tests/engines

test-long test-engines: export DISAGGROUTE_ENGINES := $(CURDIR)/.engines
test-engines: $(VENV)/.full
	$(PY) -m disaggroute live install-engines --cpu
	$(PYTEST) -m 'engines and not long' --durations 8 tests/engines

lint: $(VENV)/.full .types/disaggroute
	$(PY) -m ruff check .
	MYPYPATH=.types $(PY) -m mypy -p disaggroute
	$(MKDOCS)

dev: $(VENV)/.full .types/disaggroute

docs: $(VENV)/.full
	$(MKDOCS)

bench: $(VENV)/.base
	$(PY) -m disaggroute bench

# DATA: the folder with the recorded traces; without it the score is marked.
leaderboard: $(VENV)/.base
	$(PY) -m disaggroute experiment suite --update-best --docs docs $(if $(DATA),--data "$(DATA)")

clean:
	rm -rf $(VENV) .engines .types .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site *.egg-info

$(PY):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: none was found on the PATH." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed: $(PYTHON) is {v[0]}.{v[1]}; name another with make PYTHON=...")'
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.base: pyproject.toml constraints.txt | $(PY)
	@echo "Installing disaggroute into $(VENV) (about half a minute)"
	@$(PIP) -e .
	@echo "$(CURDIR)" > $(VENV)/.home
	@touch $@

$(VENV)/.full: pyproject.toml constraints.txt | $(PY)
	@echo "Installing disaggroute with the extras $(EXTRAS) into $(VENV) (a minute or two)"
	@$(PIP) -e ".[$(EXTRAS)]"
	@echo "$(CURDIR)" > $(VENV)/.home
	@touch $(VENV)/.base $@

# With this link, type checkers and editors find the package under its name.
.types/disaggroute:
	@mkdir -p .types
	@ln -sfn .. $@
