# SPDX-License-Identifier: MIT
# weft: `make run` does the main job, `make test` proves it. Everything else is for those who want more.
BUILD ?= build
PREFIX ?= /usr/local
FILE ?=

.PHONY: all run test soak bench lint macos-check install clean deps help
all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@tools/deps build
	@meson setup $(BUILD) --prefix $(PREFIX) -Dtests=$$(pkg-config --exists cmocka && echo true || echo false)

run: all ## the main job on a text of this machine, or on FILE=...
	@BUILD=$(BUILD) FILE="$$FILE" tools/demo

test: ## everything that is checked, with sanitizers and fuzzers: about a quarter of an hour
	@tools/deps build test
	@tests/run

soak: all ## ten minutes of nodes over tb, with faults, stops and kills
	@tools/deps build test
	@BUILD=$(BUILD) tests/soak

bench: all ## weft beside its peers: tables, and bench/out/*.json
	@tools/deps bench
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
	rm -rf build build-* bench/out

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile
