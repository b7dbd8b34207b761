# `make help` lists the targets. PY=python3 runs that interpreter as it is and installs nothing.
# Needs GNU make 3.81 or later. All paths are relative, so that the folder may have blanks in its name.

VENV := .venv
STAMP := $(VENV)/installed-in
CPU_WHEELS := https://download.pytorch.org/whl/cpu
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

# A moved or copied folder carries an environment that still points at the old place.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(shell pwd -P))
MOVED := moved
endif

ifdef PY
PYTHON := PYTHONPATH="$$PWD$${PYTHONPATH:+:$$PYTHONPATH}" "$(PY)"
else
PYTHON := $(VENV)/bin/python
SETUP := $(STAMP)
endif

.PHONY: help notebooks test lab sync lint clean moved

help:
	@echo 'make notebooks  execute every notebook into build/notebooks/ and verify every rung'
	@echo 'make test       run all tests (ARGS="-k v3 -x" passes options to pytest)'
	@echo 'make lab        open JupyterLab on working copies of the notebooks in build/lab/'
	@echo 'make sync       write notebooks/*.ipynb again from notebooks/src/*.md (ARGS=--check only looks)'
	@echo 'make lint       check style'
	@echo 'make clean      remove build/ and .venv/'
	@echo 'The first of these creates .venv/; PY=python3 uses that interpreter and installs nothing.'

notebooks: $(SETUP)
	@$(PYTHON) -m infonce_kernels.lessons.execute

test: $(SETUP)
	@$(PYTHON) -m pytest -n logical --maxprocesses=4 --dist worksteal $(ARGS)

lab: $(SETUP)
	@$(PYTHON) -m infonce_kernels.lessons.lab $(ARGS)

sync: $(SETUP)
	@$(PYTHON) -m infonce_kernels.lessons.sync $(ARGS)

lint: $(SETUP)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

clean:
	rm -rf build $(VENV)

# torch comes first and alone: where PyTorch's index cannot be reached, only one package waits for its retries.
$(STAMP): pyproject.toml constraints.txt $(MOVED)
	@command -v "$${CXX:-g++}" >/dev/null || { \
	    echo "No $${CXX:-g++} here: kernels are compiled with it." \
	         "Install g++ (Debian, Ubuntu, WSL: sudo apt install g++; macOS: xcode-select --install)."; exit 1; } >&2
	@[ -x $(VENV)/bin/python ] || { \
	    for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	        "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	    done; \
	    [ "$$python" ] || { \
	        echo "No Python 3.11 or later on PATH (python3 is: $$(python3 --version 2>&1)). Install one from" \
	             "your distribution or python.org."; exit 1; } >&2; \
	    "$$python" -c 'import venv, ensurepip' 2>/dev/null || { \
	        echo "$$python lacks the modules venv and ensurepip: install them" \
	             "(Debian, Ubuntu, WSL: sudo apt install python3-venv)."; exit 1; } >&2; \
	    echo "Creating $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV); }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(VENV)/bin/python -m ensurepip
	@command -v nvidia-smi >/dev/null || { \
	    echo "No nvidia-smi here: asking for PyTorch's CPU build"; \
	    $(PIP) install --quiet --no-deps --retries 2 --timeout 15 -c constraints.txt \
	        --extra-index-url $(CPU_WHEELS) torch; }
	@echo "Installing infonce_kernels and what its notebooks and tests need (a minute or two)"
	@$(PIP) install --quiet -c constraints.txt -e '.[notebooks,test]'
	@pwd -P > $(STAMP)
