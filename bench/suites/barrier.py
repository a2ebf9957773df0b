# SPDX-License-Identifier: MIT
"""The barrier beside OpenMPI's."""
import os
import shutil

from rig import Ours, Row, Side, nodes, run, scaled, values

NAME = "barrier"
TITLE = "barrier of 2, 4 and 8 nodes on one machine"

# group: (nodes, iterations, warm-up)
TESTS = {"2 nodes": (2, 500000, 5000), "4 nodes": (4, 20000, 200), "8 nodes": (8, 10000, 100)}


def rows(context):
    cores = len(context.cores)
    return [Row(g, f"barrier, {g}" + (f" on {cores} cores" if n > cores else ""), "us", "lower",
                1.0 if n == 2 else None)
            for g, (n, *_) in TESTS.items()]


def groups(context):
    return list(TESTS)


def word(group, scale):
    _, iterations, warmup = TESTS[group]
    return f"barrier:0:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}"


class Weft(Ours):
    PROGRAM = "bench_barrier"

    def measure(self, group, scale):
        n = TESTS[group][0]
        cores = [self.context.core(i) for i in range(n)] if n <= len(self.context.cores) else None
        return values(nodes(n, [self.program, word(group, scale)], cores), lambda line: group)


class OpenMPI(Side):
    peer = "OpenMPI"

    def __init__(self, context):
        self.context, self.program = context, context.program("peer_barrier_mpi")

    def missing(self):
        if not shutil.which("mpirun"):
            return "mpirun is not installed (Debian: openmpi-bin)"
        why = self.context.need(self.program)
        return why and why + " (needs MPI; Debian: libopenmpi-dev)"

    def measure(self, group, scale):
        n = TESTS[group][0]
        fits = n <= len(self.context.cores)
        argv = ["mpirun", "--oversubscribe", "-n", str(n), "--bind-to", "core" if fits else "none"]
        if os.geteuid() == 0:
            argv.insert(1, "--allow-run-as-root")
        # With more processes than cores it yields while it waits; without that it is thousands of times slower.
        common = [] if fits else ["--mca", "mpi_yield_when_idle", "1"]
        got = {}
        for variant, more in (("default", []), ("ob1 vader", ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"])):
            out = run(argv + common + more + [self.program, word(group, scale)])
            got[variant + ("" if fits else ", yield")] = values(out, lambda line: group)[group]
        return {group: got}


def sides(context):
    return [Weft(context), OpenMPI(context)]
