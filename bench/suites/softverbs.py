# SPDX-License-Identifier: MIT
"""softverbs under Debian's perftest, beside the kernel's bare cross-memory copy."""
import os
import shutil
import tempfile

from rig import Missing, Row, Side, ask, run, scaled, start, values

NAME = "softverbs"
TITLE = "unmodified programs on the software device, each process on a core of its own"

SIZES = ((4 << 10, "4 KiB", 100000), (64 << 10, "64 KiB", 40000), (1 << 20, "1 MiB", 5000), (8 << 20, "8 MiB", 300))
# group: (perftest's program, the copy's test, bytes, iterations)
PERFTEST = {"write_lat": ("ib_write_lat", "write_lat", 2, 50000),
            "send_lat": ("ib_send_lat", "send_lat", 2, 50000)}
for _bytes, _text, _iterations in SIZES:
    PERFTEST[f"write_bw {_text}"] = ("ib_write_bw", "write_bw", _bytes, _iterations)
# group: (test of bench_verbs, iterations, warm-up)
OWN = {"connect": ("connect", 30, 2), "memory": ("memory", 1, 0)}


def rows(context):
    found = [Row("write_lat", "RDMA write 2 B, half round trip", "us", "lower", 1.5, ("copy",)),
             Row("send_lat", "send 2 B, half round trip", "us", "lower", 1.5, ("copy",))]
    for _, text, _ in SIZES:
        found.append(Row(f"write_bw {text}", f"RDMA write {text}", "GB/s", "higher",
                         0.9 if text == "1 MiB" else None, ("copy",)))
    found.append(Row("connect", "open the device, connect a queue pair (wanted: under 5)", "ms", "lower"))
    found.append(Row("memory", "memory of a process with one queue pair (wanted: under 2)", "MiB", "lower"))
    return found


def groups(context):
    return [*PERFTEST, *OWN]


class Softverbs(Side):
    def __init__(self, context):
        self.context = context
        self.command = os.path.join(context.build, "softverbs", "cli", "softverbs")
        self.own = context.program("bench_verbs")

    def missing(self):
        return self.context.need(self.command) or self.context.need(self.own)

    def prepare(self):
        shm = "/dev/shm"
        self.folder = tempfile.TemporaryDirectory(prefix="bench-softverbs-", dir=shm if os.path.isdir(shm) else None)
        self.env = {"SOFTVERBS_DIR": self.folder.name}

    def finish(self):
        self.folder.cleanup()

    def on(self, host, argv):
        return [self.command, "run", "--fabric", "bench", "--host", str(host), "--", *argv]

    def perftest(self, group, scale):
        program, _, size, iterations = PERFTEST[group]
        if not shutil.which(program):
            raise Missing(f"{program} is not installed (Debian: perftest)")
        count = scaled(iterations, scale, 100)
        argv = [program, "-F", "-s", str(size), "-n", str(count)]
        argv += ["--report_gbits"] if program.endswith("_bw") else []
        out = ask(lambda port: start(self.on(0, [*argv, "-p", str(port)]), self.context.core(0), self.env),
                  lambda port: start(self.on(1, [*argv, "-p", str(port), "127.0.0.1"]), self.context.core(1), self.env), 120)
        for line in out.splitlines():
            fields = line.split()
            if len(fields) > 4 and fields[0] == str(size):
                # bandwidth: size, iterations, peak, average ...; latency: size, iterations, min, max, typical ...
                return float(fields[3]) / 8 if program.endswith("_bw") else float(fields[4])
        raise Missing(f"{program}'s output is not understood")

    def measure(self, group, scale):
        if group in PERFTEST:
            return {group: self.perftest(group, scale)}
        test, iterations, warmup = OWN[group]
        word = f"{test}:0:{scaled(iterations, scale, 1)}:{warmup}"
        return values(run(self.on(0, [self.own, word]), env=self.env), lambda line: group)


class Copy(Side):
    peer = "copy"
    limit = True

    def __init__(self, context):
        self.context, self.program = context, context.program("peer_cross_memory")

    def missing(self):
        return self.context.need(self.program)

    def measure(self, group, scale):
        if group not in PERFTEST:
            return {}
        _, test, size, iterations = PERFTEST[group]
        count = scaled(iterations, scale, 100)
        return values(run([self.program, f"{test}:{size}:{count}:{count // 10}"]), lambda line: group)


def sides(context):
    return [Softverbs(context), Copy(context)]
