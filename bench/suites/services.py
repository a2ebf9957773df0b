# SPDX-License-Identifier: MIT
"""The process service, beside programs that are started without it."""
from rig import Ours, Row, nodes, run, scaled, values

NAME = "services"
TITLE = "programs that a node starts for others"

# group: (test, nodes, iterations, warm-up)
TESTS = {"spawn own": ("spawn", 1, 500, 50), "spawn": ("spawn", 2, 500, 50), "1,000 spawns": ("many", 2, 1000, 10)}


def rows(context):
    return [Row("spawn own", "start `true` at the own node, and its end", "us", "lower", 1.15),
            Row("spawn", "the same at another node of the host", "us", "lower", 1.15),
            Row("1,000 spawns", "1,000 of them at once", "programs/s", "higher")]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_services"

    def test(self, group, scale, test=None):
        own, count, iterations, warmup = TESTS[group]
        word = f"{test or own}:0:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}"
        if test:
            return values(run([self.program, word]), lambda line: group)
        return values(nodes(count, [self.program, word]), lambda line: group)

    def measure(self, group, scale):
        return self.test(group, scale)


class Posix(Weft):
    """posix_spawn() and waitpid(), one after the other."""
    peer = "posix_spawn"

    def measure(self, group, scale):
        got = self.test(group, scale, "posix")
        if group == "1,000 spawns":
            return {group: 1e6 / got[group]}
        return got


def sides(context):
    return [Weft(context), Posix(context)]
