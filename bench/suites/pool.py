# SPDX-License-Identifier: MIT
"""The pool's allocator beside glibc's malloc and mimalloc, taking turns inside one program (bench/pool.c)."""
from rig import Missing, Row, Side, json_lines, run

NAME = "pool"
TITLE = "what an allocation and its free cost together"

SIZES = ("64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "32 KiB")


def rows(context):
    names = [f"{kind} {size}, {threads}" for kind in ("pair", "batch") for threads in ("1 thread", "2 threads")
             for size in SIZES]
    return [Row(n, n, "ns", "lower", 1.0, against=("glibc",)) for n in names]


def groups(context):
    return ["all"]


class Program:
    """One run of the program serves every side of a round."""

    def __init__(self, path):
        self.path, self.lines, self.taken = path, None, set()

    def figures(self, who):
        if self.lines is None or who in self.taken:
            self.lines, self.taken = json_lines(run([self.path])), set()
        self.taken.add(who)
        got = {}
        for line in self.lines:
            if line.get("missing") == who:
                raise Missing(line["why"])
            if "name" in line:
                value = line["ours"] if who == "ours" else line["peers"].get(who)
                if value is not None:
                    got[line["name"]] = value
        if not got:
            raise Missing("the program printed no figure of it")
        return got


class Allocator(Side):
    def __init__(self, context, program, peer=None):
        self.context, self.program, self.key = context, program, peer or "ours"
        self.peer = peer or Side.peer

    def missing(self):
        return self.context.need(self.program.path)

    def measure(self, group, scale):
        return self.program.figures(self.key)


def sides(context):
    program = Program(context.program("bench_pool"))
    return [Allocator(context, program), Allocator(context, program, "glibc"), Allocator(context, program, "mimalloc")]
