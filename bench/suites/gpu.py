# SPDX-License-Identifier: MIT
"""Requests of a GPU's kernels to their node, beside the limits without weft: two words in host memory, rings that a thread only reads. Tasks done
by a persistent kernel, beside a kernel launched for each task. `weft map --gpu`, beside a bare copy to the GPU and the processor's kernels."""
import json
import os
import tempfile

from rig import OUT, Ours, Row, Side, nodes, run, scaled, values

NAME = "gpu"
TITLE = "requests of a GPU's kernels to their node (needs a CUDA GPU)"

# group: (weft's test, the test without weft, blocks, iterations, warm-up)
TESTS = {"request": ("request_lat", "bare_lat", 0, 20000, 1000), "request given": ("request_given_lat", "bare_lat", 0, 20000, 1000),
         "read": (None, "bare_read_lat", 0, 20000, 1000), "store": ("store_lat", "bare_lat", 0, 20000, 1000),
         "store kept": ("store_kept_lat", "bare_lat", 0, 20000, 1000),
         "put": ("put_lat", "bare_lat", 0, 20000, 1000),
         "requests 8": ("requests", "bare_rate", 8, 20000000, 1), "requests 64": ("requests", "bare_rate", 64, 20000000, 1),
         "puts 8": ("puts", "bare_rate", 8, 5000000, 1), "puts 64": ("puts", "bare_rate", 64, 5000000, 1),
         "tasks": ("tasks", None, 64, 2000000, 1)}
# Puts and gets of the processor to an arena of its own GPU, beside copies by CUDA between pinned memory and the GPU.
ARENA = {"64 KiB": (65536, 20000, 1000), "1 MiB": (1 << 20, 4000, 200), "16 MiB": (16 << 20, 400, 20)}
# Atomics of the processor on an arena: how many at a time, and how many in all.
ATOMIC = (64, 20000, 1000)
# Kernels of weft map, on text: in memory, and of a file that is in the page cache. Iterations are MiB of a bare copy.
KERNELS = {"histogram": "histogram", "wc": "wc", "grep": "grep:needle", "xxh64": "xxh64"}
COPY = ("bare_copy", 65536, 4096)
SPANS = (8, 16384, 1024)  # threads, and pieces of 4 MiB
FILE_BYTES = 8_000_000_000
# Puts to the other node's arena over TCP, where the data is staged, beside puts of the same size to its pool, which are the link's limit.
STAGED = {"1 MiB": "1048576:400:40", "16 MiB": "16777216:40:4", "64 MiB": "67108864:20:3"}
OVER_TCP = {"WEFT_TRANSPORT": "ofi"}


def rows(context):
    return [Row("request", "empty request, kernel to node and back", "us", "lower", 1.2, ["bare"]),
            Row("request given", "the same, by a kernel whose parameter is the weft_device itself", "us", "lower", 1.2, ["bare"]),
            Row("read", "a kernel's read of a word in the host's memory", "us", "lower"),
            Row("store", "store of 8 B to another node's pool, seen by its processor, and its put back", "us", "lower", 1.2, ["bare"]),
            Row("store kept", "the same, by pointers that the kernel keeps", "us", "lower", 1.2, ["bare"]),
            Row("put", "put of 8 B to another node's pool, complete", "us", "lower"),
            *[Row(f"requests {n}", f"empty requests, {n} blocks on 8 rings", "M/s", "higher") for n in (8, 64)],
            *[Row(f"puts {n}", f"puts of 8 B to another node's pool, {n} blocks", "M/s", "higher") for n in (8, 64)],
            Row("tasks", "tasks submitted, done by 64 blocks, and reaped", "M/s", "higher", 1.0, ["a launch a task"]),
            *[Row(f"arena {way} {n}", f"{way} of {n} by a processor, its GPU's arena", "GB/s", "higher", 0.8 if n == "64 KiB" else 0.95, ["bare"])
              for way in ("put", "get") for n in ARENA],
            Row("atomics", "atomics of a processor on its GPU's arena, 64 at a time", "M/s", "higher"),
            Row("atomics remote", "the same on the other node's arena", "M/s", "higher"),
            *[Row(f"staged {n}", f"put of {n} to another node's arena, staged, over TCP", "GB/s", "higher", 0.9, ["bare"]) for n in STAGED],
            *[Row(f"spans {k}", f"kernel {k}, bytes in memory", "GB/s", "higher", *wanted(k)) for k in KERNELS],
            *[Row(f"map {k}", f"weft map --gpu --kernel {k}, a file in the page cache", "GB/s", "higher", *wanted(k)) for k in KERNELS]]


def wanted(kernel):
    return (0.9, ["bare"]) if kernel == "histogram" else ()


def groups(context):
    arena = [f"arena {way} {n}" for way in ("put", "get") for n in ARENA]
    return list(TESTS) + arena + ["atomics", "atomics remote"] + [f"staged {n}" for n in STAGED] + [f"{what} {k}" for what in ("spans", "map") for k in KERNELS]


def text(scale):
    """A file of lines of words, in the page cache or in memory; the same every time."""
    size, memory = int(FILE_BYTES * scale), "/dev/shm"
    where = memory if os.path.isdir(memory) and os.statvfs(memory).f_bavail * os.statvfs(memory).f_frsize > 2 * size else OUT
    path = os.path.join(where, f"weft-bench-gpu-{size // 1_000_000}MB")
    if not os.path.exists(path) or os.path.getsize(path) != size:
        os.makedirs(OUT, exist_ok=True)
        block = b"".join(b"%x word %d of a line\n" % (i * 2654435761 % 2**32, i % 1000) for i in range(2_000_000))
        with open(path + ".part", "wb") as f:
            for at in range(0, size, len(block)):
                f.write(block[:size - at])
        os.replace(path + ".part", path)
    return path


def map_rate(weft, options, kernel, scale):
    """Gigabytes a second of a whole job, without what it takes to start its nodes and to open the GPU."""
    path = text(scale)
    with tempfile.NamedTemporaryFile(suffix=".json") as stats:
        run([weft, "map", *options, "--kernel", KERNELS[kernel], "--stats-file", stats.name, path])
        s = json.load(stats)
    return s["bytes_in"] / 1e9 / (s["seconds"] - s["start_seconds"])


def word(group, scale, name):
    test = TESTS[group]
    return f"{name}:{test[2]}:{scaled(test[3], scale)}:{scaled(test[4], scale, 1)}"


class Weft(Ours):
    PROGRAM = "bench_gpu"
    WHICH = 0

    STAGED_TEST = "staged_put"
    ATOMICS = {"atomics": "arena_atomic", "atomics remote": "remote_atomic"}
    ARENA_TEST = "arena"

    def arena(self, group, test, size, iterations, warmup, scale):
        """A test of the processor with the GPU's memory."""
        return values(nodes(2, [self.program, f"{test}:{size}:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}"]), lambda line: group)

    def measure(self, group, scale):
        if group.startswith("arena "):
            way, size = group.removeprefix("arena ").split(" ", 1)
            return self.arena(group, f"{self.ARENA_TEST}_{way}", *ARENA[size], scale)
        if group.startswith("atomics"):
            return self.arena(group, self.ATOMICS[group], *ATOMIC, scale)
        if group.startswith("staged "):
            test = f"{self.STAGED_TEST}:{STAGED[group.removeprefix('staged ')]}"
            return values(nodes(2, [self.context.program("bench_gpu_staged"), "cuda:0", test], env=OVER_TCP), lambda line: group)
        if group not in TESTS:
            return self.measure_map(*group.split(" "), scale)
        name = TESTS[group][self.WHICH]
        return values(nodes(2, [self.program, word(group, scale, name)]), lambda line: group) if name else {}


    def weft(self):
        return os.path.join(self.context.build, "src", "cli", "weft")

    def measure_map(self, what, kernel, scale):
        group = f"{what} {kernel}"
        if what == "map":
            return {group: map_rate(self.weft(), ["--gpu"], kernel, scale)}
        threads, pieces, warm = SPANS
        word = f"{kernel}:{threads}:{scaled(pieces, scale)}:{scaled(warm, scale)}"
        return values(run([self.context.program("bench_gpu_spans"), word]), lambda line: group)

    def finish(self):
        for scale in (1, 0.1):
            for where in ("/dev/shm", OUT):
                path = os.path.join(where, f"weft-bench-gpu-{int(FILE_BYTES * scale) // 1_000_000}MB")
                if os.path.exists(path):
                    os.unlink(path)


class Bare(Weft, Side):
    peer = "bare"
    limit = True
    WHICH = 1
    STAGED_TEST = "pool_put"
    ATOMICS = {"atomics": "bare_atomic", "atomics remote": "bare_atomic"}
    ARENA_TEST = "bare"

    def measure_map(self, what, kernel, scale):
        test, copied, warm = COPY
        word = f"{test}:0:{scaled(copied, scale)}:{scaled(warm, scale)}"
        return values(nodes(2, [self.program, word]), lambda line: f"{what} {kernel}")

    def finish(self):
        pass


class Processor(Weft, Side):
    """The same kernels on all processors: one node with a slot for each."""
    peer = "processor"

    def measure(self, group, scale):
        return super().measure(group, scale) if group.startswith("map ") else {}

    def measure_map(self, what, kernel, scale):
        options = ["--nodes", "1", "--slots", str(len(self.context.cores))]
        return {f"{what} {kernel}": map_rate(self.weft(), options, kernel, scale)}

    def finish(self):
        pass


class Launch(Weft, Side):
    peer = "a launch a task"

    def measure(self, group, scale):
        if group != "tasks":
            return {}
        return {group: {name: values(nodes(2, [self.program, word(group, scale / 4, name)]), lambda line: group)[group]
                        for name in ("launches", "graphs")}}


def sides(context):
    return [Weft(context), Bare(context), Processor(context), Launch(context)]
