# make demo and make test need python3, a C++ compiler and make; they set up the rest in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := $(shell find cpp -name '*.cc' -o -name '*.h') CMakeLists.txt pyproject.toml constraints.txt
CPP := $(shell find cpp -path cpp/third_party -prune -o \( -name '*.cc' -o -name '*.h' \) -print)

.PHONY: help demo test check lint format cpp-test python-test soak sanitize bench bench-standard \
        bench-parts liburing clean

help:
	@echo "make demo      a graph larger than its memory budget, end to end"
	@echo "make test      lint, C++ tests, Python tests"
	@echo "make check     the same with the fast part of the Python tests: under 3 minutes, for daily work"
	@echo "make lint      ruff, mypy --strict, clang-format"
	@echo "make format    let ruff and clang-format rewrite the code"
	@echo "make sanitize  C++ tests under ASan + UBSan, and under TSan"
	@echo "make soak      long random tests, then kills, faults, leaks and fuzzed inputs, with figures"
	@echo "make bench     strategies side by side on a 2 GB graph in 1 GB (bench-standard: 10 GB in 2.5)"
	@echo "make bench-parts  the disk engine (against fio), ingest, the sampler, an epoch, packing"

liburing:
	@scripts/liburing.sh

$(INSTALLED): $(SOURCES) | liburing
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@mkdir -p build && $(BIN)/outcrop demo build

test: lint cpp-test python-test

# The parts that everything stands on, and one path through all of them (test_neighbor). Left out:
# conformance, ingest, strategies, packing, training, processes and browsers, which make test has.
CHECK := tests/store tests/memory tests/threads tests/observe tests/run tests/sample/test_seeds.py \
         tests/layout/test_trace.py tests/loader/test_neighbor.py tests/cli/test_progress.py \
         tests/tools/report/test_html.py tests/tools/report/test_load.py \
         tests/tools/bench/test_bound.py tests/train/test_options.py \
         $(patsubst %,tests/test_%.py,core disk options package schema) \
         --deselect tests/tools/report/test_html.py::test_whatever_a_value_is_the_page_is_drawn_or_the_place_named

check: lint cpp-test
	$(BIN)/pytest $(CHECK)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix --exit-zero
	$(BIN)/clang-format -i $(CPP)

# $(call cpp_tests,FOLDER,CMAKE OPTIONS)
define cpp_tests
	@$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DOUTCROP_PYTHON=OFF -DOUTCROP_TESTS=ON $(2) >/dev/null
	@$(BIN)/cmake --build build/$(1)
	build/$(1)/outcrop_tests
endef

cpp-test: $(INSTALLED)
	$(call cpp_tests,cpp-test,-DOUTCROP_WERROR=ON)

# -rs: at the end, what was skipped and why.
python-test: $(INSTALLED)
	$(BIN)/pytest -rs

sanitize: $(INSTALLED)
	$(call cpp_tests,asan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DOUTCROP_SANITIZE=address$(comma)undefined)
	$(call cpp_tests,tsan,-DCMAKE_BUILD_TYPE=RelWithDebInfo -DOUTCROP_SANITIZE=thread)

comma := ,

soak: $(INSTALLED)
	OUTCROP_SOAK=1 $(BIN)/pytest -m 'soak or not soak' -o timeout=7200
	$(BIN)/python -m tests.soak --jobs 2

# Strategies on the quick graph (4M nodes, 2 GB of features) in 1 GB; about 10 minutes.
bench: $(INSTALLED)
	@$(BIN)/python benchmarks/strategies.py quick

# The standard graph (20M nodes, 10 GB of features) in 2.5 GB: what targets are judged on.
bench-standard: $(INSTALLED)
	@$(BIN)/python benchmarks/strategies.py standard

# What the strategies stand on: the disk engine against fio, ingest, the sampler, an epoch, packing.
bench-parts: $(INSTALLED)
	@$(BIN)/python benchmarks/ingest.py
	@$(BIN)/python benchmarks/read_rows.py
	@$(BIN)/python benchmarks/sampling.py
	@$(BIN)/python benchmarks/epoch.py
	@$(BIN)/python benchmarks/packing.py

clean:
	rm -rf build $(INSTALLED)
