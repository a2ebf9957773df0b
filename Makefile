# SPDX-License-Identifier: MIT
# weft: `make run` does the main job, `make test` proves it. Everything else is for those who want more.
BUILD ?= build

.PHONY: all run test bench lint install clean deps
all: $(BUILD)/build.ninja
	@ninja -C $(BUILD)

$(BUILD)/build.ninja:
	@meson setup $(BUILD)

clean:
	rm -rf build build-* bench/out
