# SPDX-License-Identifier: MIT
"""Requests of a GPU's kernels to their node, beside the bare thing: two words in host memory, rings that a thread only reads."""
from rig import Ours, Row, Side, nodes, scaled, values

NAME = "gpu"
TITLE = "requests of a GPU's kernels to their node (needs a CUDA GPU)"

# group: (test of ours, the bare one, blocks, iterations, warm-up)
TESTS = {"request": ("request_lat", "bare_lat", 0, 20000, 1000), "put": ("put_lat", "bare_lat", 0, 20000, 1000),
         "requests 8": ("requests", "bare_rate", 8, 20000000, 1), "requests 64": ("requests", "bare_rate", 64, 20000000, 1),
         "puts 8": ("puts", "bare_rate", 8, 5000000, 1), "puts 64": ("puts", "bare_rate", 64, 5000000, 1)}


def rows(context):
    return [Row("request", "empty request, kernel to node and back", "us", "lower", 1.2, ["bare"]),
            Row("put", "put of 8 B to another node's pool, complete", "us", "lower"),
            *[Row(f"requests {n}", f"empty requests, {n} blocks on 8 rings", "M/s", "higher") for n in (8, 64)],
            *[Row(f"puts {n}", f"puts of 8 B to another node's pool, {n} blocks", "M/s", "higher") for n in (8, 64)]]


def groups(context):
    return list(TESTS)


def word(group, scale, which):
    test = TESTS[group]
    return f"{test[which]}:{test[2]}:{scaled(test[3], scale)}:{scaled(test[4], scale, 1)}"


class Weft(Ours):
    PROGRAM = "bench_gpu"
    WHICH = 0

    def measure(self, group, scale):
        return values(nodes(2, [self.program, word(group, scale, self.WHICH)]), lambda line: group)


class Bare(Weft, Side):
    peer = "bare"
    limit = True
    WHICH = 1


def sides(context):
    return [Weft(context), Bare(context)]
