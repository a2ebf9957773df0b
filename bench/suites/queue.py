# SPDX-License-Identifier: MIT
"""The work queue beside Redis lists."""
import os
import shutil
import tempfile
import time

from rig import Ours, Row, Side, end, nodes, run, scaled, start, values

NAME = "queue"
TITLE = "tasks submitted, claimed, completed and reaped a second, empty payload"

# group: (how, batch, tasks, warm-up, target); Redis does a twentieth (batch 1) or a fifth (64) of the tasks, since
# it is that much slower and a round should not last longer for it
TESTS = {"local 1": ("local", 1, 400000, 5000, 20.0), "local 64": ("local", 64, 2560000, 25600, 5.0),
         "pair 1": ("pair", 1, 400000, 5000, 20.0), "pair 64": ("pair", 64, 2560000, 25600, 5.0)}
WINDOWS = (4, 16)


def rows(context):
    where = {"local": "one node does all", "pair": "two nodes: one submits, one works"}
    return [Row(g, f"{where[how]}, batch {batch}", "tasks/s", "higher", target)
            for g, (how, batch, _, _, target) in TESTS.items()]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_queue"

    def measure(self, group, scale):
        how, batch, tasks, warmup, _ = TESTS[group]
        word = f"{how}:{batch}:{scaled(tasks, scale)}:{scaled(warmup, scale)}"
        cores = [self.context.core(0), self.context.core(1)]
        return values(nodes(2 if how == "pair" else 1, [self.program, word], cores), lambda line: group)


class Redis(Side):
    peer = "Redis"

    def __init__(self, context):
        self.context, self.program = context, context.program("peer_redis")
        self.server = self.folder = None

    def missing(self):
        if not shutil.which("redis-server"):
            return "redis-server is not installed (Debian: redis-server)"
        why = self.context.need(self.program)
        return why and why + " (needs hiredis; Debian: libhiredis-dev)"

    def prepare(self):
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        self.socket = os.path.join(self.folder, "redis.sock")
        self.server = start(["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "",
                             "--appendonly", "no", "--dir", self.folder, "--logfile",
                             os.path.join(self.folder, "log"), "--daemonize", "no"])
        limit = time.monotonic() + 10
        while not os.path.exists(self.socket):
            if time.monotonic() > limit or self.server.poll() is not None:
                self.finish()
                raise RuntimeError("redis-server did not come up")
            time.sleep(0.02)

    def finish(self):
        if self.server:
            end(self.server)
            self.server.stdout.close()
            self.server.stderr.close()
            self.server = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def measure(self, group, scale):
        how, batch, tasks, warmup, target = TESTS[group]
        word = f"{how}:{batch}:{scaled(tasks / target, scale, batch)}:{scaled(warmup / target, scale, batch)}"
        # Not pinned: with two processes and a server on two cores the kernel places them better than a fixed map would.
        if how == "local":
            return {group: values(run([self.program, self.socket, word]), lambda line: group)[group]}
        return {group: {f"{w} batches outstanding":
                        values(run([self.program, self.socket, word, str(w)]), lambda line: group)[group]
                        for w in WINDOWS}}


def sides(context):
    return [Weft(context), Redis(context)]
