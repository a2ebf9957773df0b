# SPDX-License-Identifier: MIT
"""Files that a gateway has read for other nodes of its host, beside what a program reads by itself."""
import os

from rig import Ours, Row, nodes, run, scaled, values

NAME = "file"
TITLE = "files of a node, cached for others"

MIB = 1 << 20
# group: (test, nodes, bytes, iterations, warm-up)
TESTS = {"read": ("read", 2, 64 * MIB, 20, 1), "map": ("map", 2, 64 * MIB, 20, 1), "cold": ("cold", 5, 64 * MIB, 1, 0)}


def rows(context):
    return [Row("read", "read a cached file of another node of the host", "GB/s", "higher", 1, ["pread"]),
            Row("map", "map it and sum its words", "GB/s", "higher", 1, ["mmap"]),
            Row("cold", "four nodes read 64 MiB that nobody has cached, beside one node", "ms", "lower", 1.2, ["one node"])]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_file"

    def test(self, group, scale, test=None, count=None):
        own, nodes_count, size, iterations, warmup = TESTS[group]
        word = f"{test or own}:{size}:{scaled(iterations, scale, 1)}:{warmup}"
        env = {"BENCH_FILE": str(os.getpid())}
        if test in ("pread", "mmap"):
            return values(run([self.program, word]), lambda line: group)
        return values(nodes(count or nodes_count, [self.program, word], env=env), lambda line: group)

    def measure(self, group, scale):
        return self.test(group, scale)


class System(Weft):
    """read(2) and mmap(2) of a file in the system's cache."""
    def __init__(self, context, peer, row):
        super().__init__(context)
        self.peer, self.row = peer, row

    def measure(self, group, scale):
        return self.test(group, scale, self.peer) if group == self.row else {}


class OneNode(Weft):
    peer = "one node"

    def measure(self, group, scale):
        return self.test(group, scale, count=2) if group == "cold" else {}


class Get(Weft):
    """weft_get() of as many bytes: what the transport can do."""
    peer = "weft_get"
    limit = True

    def measure(self, group, scale):
        return self.test(group, scale, "get") if group == "read" else {}


def sides(context):
    return [Weft(context), System(context, "pread", "read"), System(context, "mmap", "map"), OneNode(context), Get(context)]
