# SPDX-License-Identifier: MIT
# weft: `make run` does the main job, `make test` proves it. Everything else is for those who want more.
BUILD ?= build
PREFIX ?= /usr/local
FILE ?=

.PHONY: all run test test-full soak bench lint macos-check install clean deps help
all: ## build everything: library, command, softverbs, examples, tests where cmocka is installed
	@tools/deps build
	@tools/build $(BUILD)

run: ## the main job on a text of this machine, or on FILE=...
	@tools/deps build
	@tools/build $(BUILD) src/cli/weft
	@BUILD=$(BUILD) FILE="$$FILE" tools/demo

test: ## what every commit needs: about seven minutes on two processors
	@tools/deps build test
	@tests/run

test-full: ## everything, with sanitizers, fuzzers and long tests: up to half an hour
	@tools/deps build test
	@tests/run full

soak: all ## ten minutes of nodes over tb, with faults, stops and kills
	@tools/deps build test
	@BUILD=$(BUILD) tests/soak

bench: all ## weft beside its peers: tables, and bench/out/*.json
	@tools/deps bench
	@tools/build $(BUILD) benchmarks
	@bench/run all

lint: ## warnings of two compilers, clang-tidy, cppcheck
	@tools/deps build test lint
	@tools/lint

macos-check: ## compile and link all of it for macOS, here; fetches a compiler from npm
	@tools/deps build
	@tools/macos-check

install: all ## to PREFIX (/usr/local)
	@meson configure $(BUILD) --prefix $(PREFIX) >/dev/null
	meson install -C $(BUILD)
	@tools/library-path $(BUILD)

deps: ## install what all of these need
	@tools/deps build test lint bench

clean:
	rm -rf build build-* softverbs/build bench/out

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile
