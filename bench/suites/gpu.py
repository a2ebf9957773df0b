# SPDX-License-Identifier: MIT
"""Requests of a GPU's kernels to their node, beside the bare thing: two words in host memory, rings that a thread only reads. Tasks done by
a kernel that stays, beside a kernel launched for each."""
from rig import Ours, Row, Side, nodes, scaled, values

NAME = "gpu"
TITLE = "requests of a GPU's kernels to their node (needs a CUDA GPU)"

# group: (test of ours, the bare one, blocks, iterations, warm-up)
TESTS = {"request": ("request_lat", "bare_lat", 0, 20000, 1000), "put": ("put_lat", "bare_lat", 0, 20000, 1000),
         "requests 8": ("requests", "bare_rate", 8, 20000000, 1), "requests 64": ("requests", "bare_rate", 64, 20000000, 1),
         "puts 8": ("puts", "bare_rate", 8, 5000000, 1), "puts 64": ("puts", "bare_rate", 64, 5000000, 1),
         "tasks": ("tasks", None, 64, 2000000, 1)}


def rows(context):
    return [Row("request", "empty request, kernel to node and back", "us", "lower", 1.2, ["bare"]),
            Row("put", "put of 8 B to another node's pool, complete", "us", "lower"),
            *[Row(f"requests {n}", f"empty requests, {n} blocks on 8 rings", "M/s", "higher") for n in (8, 64)],
            *[Row(f"puts {n}", f"puts of 8 B to another node's pool, {n} blocks", "M/s", "higher") for n in (8, 64)],
            Row("tasks", "tasks submitted, done by 64 blocks, and reaped", "M/s", "higher", 1.0, ["a launch a task"])]


def groups(context):
    return list(TESTS)


def word(group, scale, name):
    test = TESTS[group]
    return f"{name}:{test[2]}:{scaled(test[3], scale)}:{scaled(test[4], scale, 1)}"


class Weft(Ours):
    PROGRAM = "bench_gpu"
    WHICH = 0

    def measure(self, group, scale):
        name = TESTS[group][self.WHICH]
        return values(nodes(2, [self.program, word(group, scale, name)]), lambda line: group) if name else {}


class Bare(Weft, Side):
    peer = "bare"
    limit = True
    WHICH = 1


class Launch(Weft, Side):
    peer = "a launch a task"

    def measure(self, group, scale):
        if group != "tasks":
            return {}
        return {group: {name: values(nodes(2, [self.program, word(group, scale / 4, name)]), lambda line: group)[group]
                        for name in ("launches", "graphs")}}


def sides(context):
    return [Weft(context), Bare(context), Launch(context)]
