# SPDX-License-Identifier: MIT
"""Kernels of two GPUs of one node that reach each other's arenas: a word and its flag, and copies by blocks; beside them the same in CUDA alone,
and the copy engine."""
from rig import Ours, Row, Side, nodes, scaled, values

NAME = "nvlink"
TITLE = "kernels of two GPUs that access each other's memory (needs two CUDA GPUs)"
BLOCKS = (1, 8, 64, 132)
# row: (test, blocks, iterations, warm-up); iterations of copies are pieces of 1 MiB
TESTS = {"word": ("lat", 0, 100000, 2000), "word given": ("given_lat", 0, 100000, 2000),
         "word early": ("given_early_lat", 0, 100000, 2000), "word kept": ("keep_lat", 0, 100000, 2000)}
TESTS.update({f"{what} {n}": (what, n, 4096 * min(n, 16), 512) for what in ("put", "get") for n in BLOCKS})


def rows(context):
    return [Row("word", "a word and its flag to the other GPU, and back", "us", "lower", 1.1, ["bare"]),
            Row("word given", "the same, by a kernel whose parameter is the weft_device itself", "us", "lower", 1.1, ["bare"]),
            Row("word early", "the same, by one that asks for its pointer before it waits", "us", "lower", 1.1, ["bare"]),
            Row("word kept", "the same, by a pointer that the kernel keeps", "us", "lower", 1.1, ["bare"]),
            *[Row(f"{what} {n}", f"{what} of 1 MiB each, by {n} block{'s' * (n > 1)}", "GB/s", "higher", 0.95, ["bare"])
              for what in ("put", "get") for n in BLOCKS]]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_gpu_two"
    PREFIX = ""

    def measure(self, group, scale):
        test, blocks, iterations, warm = TESTS[group]
        word = f"{self.PREFIX}{test}:{blocks}:{scaled(iterations, scale)}:{scaled(warm, scale, 1)}"
        return values(nodes(1, [self.program, word]), lambda line: group)


class Bare(Weft, Side):
    peer = "bare"
    limit = True
    PREFIX = "bare_"


class Engine(Weft, Side):
    peer = "copy engine"
    limit = True
    PREFIX = "engine_"

    def measure(self, group, scale):
        return {} if group.startswith("word") else super().measure(group, scale)


def sides(context):
    return [Weft(context), Bare(context), Engine(context)]
