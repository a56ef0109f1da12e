# Two commands on a fresh Debian 12 or Ubuntu 24.04: `make demo` and `make test`. The rest is in `make help`.

.DEFAULT_GOAL := help
SETUP := tools/setup.sh
PYTHON = $(shell $(SETUP) python)
# A foreign interpreter has no broach.pth, so the folders of the package and of the extension travel in the environment.
RUN = $(if $(BROACH_PYTHON),PYTHONPATH="$(CURDIR)/python:$(CURDIR)/build/python$${PYTHONPATH:+:$$PYTHONPATH}") $(PYTHON)

export BROACH_PYTHON TORCH_SPEC PIP_EXTRA_ARGS CMAKE_ARGS JOBS

.PHONY: help setup build lint format test test-all demo bench clean

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@sed -n 's/^## //p' $(SETUP)

setup:  ## System packages, .venv and the pinned Python packages; does nothing where they are there
	@$(SETUP) setup

build: setup  ## The core, the extension and the C++ tests in build/; `import broach` works in .venv after it
	@$(SETUP) build

lint:  ## Layering, lengths and formatting
	@python3 tools/lint.py

format: setup  ## Lay out all C++ as .clang-format says
	@python3 tools/lint.py --format

test: build  ## C++ core tests, Python tests and lint
	@rm -f build/ctest.xml build/pytest.xml
	@status=0; \
	ctest --test-dir build -j $(or $(JOBS),2) --output-on-failure --no-tests=error --output-junit ctest.xml || status=1; \
	$(RUN) -m pytest tests -q --junitxml=build/pytest.xml $(TEST_ARGS) || status=1; \
	exit $$status

test-all: export BROACH_TEST_ALL = 1
test-all: test  ## The same with every sample and configuration, for hours rather than minutes

demo: build  ## Compile ResNet-50, ViT, BERT, GPT-2, Llama and an MLP, check them against eager; DEMO_ARGS="--quick"
	@$(RUN) examples/demo.py $(DEMO_ARGS)

bench: build  ## Eager, Inductor and Broach interleaved; BENCH_ARGS="models --dtype bf16", results in bench/results/
	@$(RUN) bench/run.py $(BENCH_ARGS)

clean:  ## Remove build/ (the .venv stays)
	rm -rf build
