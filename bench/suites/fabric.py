# SPDX-License-Identifier: MIT
"""put, get, compare_swap and messages between two pinned processes, beside UCX and libfabric over shared memory."""
import shutil

from rig import Missing, Ours, Row, Side, ask, nodes, run, scaled, start, values

NAME = "fabric"
TITLE = "operations between two nodes of one machine, each on a core of its own"

SIZES = ((4 << 10, "4 KiB", 200000, 2000), (64 << 10, "64 KiB", 30000, 300), (1 << 20, "1 MiB", 2000, 20),
         (16 << 20, "16 MiB", 100, 20), (256 << 20, "256 MiB", 6, 2))
# group: (test, bytes, iterations, warm-up)
TESTS = {"put_lat": ("put_lat", 8, 500000, 10000), "msg_lat": ("msg_lat", 8, 200000, 10000),
         "cswap_lat": ("cswap_lat", 8, 500000, 10000)}
for _bytes, _text, _iterations, _warmup in SIZES:
    for _test in ("put_bw", "get_bw"):
        TESTS[f"{_test} {_text}"] = (_test, _bytes, _iterations, _warmup)
# Several threads may copy: neither node is bound to a core, and the peer is weft with one thread.
SHARED = {}
for _bytes, _text, _iterations, _warmup in ((4 << 20, "4 MiB", 500, 20), (64 << 20, "64 MiB", 40, 8), (256 << 20, "256 MiB", 10, 2)):
    for _test in ("put_bw", "get_bw"):
        SHARED[f"shared {_test} {_text}"] = (_test, _bytes, _iterations, _warmup)
SHARED_CORES = 4   # with fewer cores there are no helper threads
SHARED_TARGET = 3  # times one thread, for 64 MiB with 16 cores


def rows(context):
    found = [Row("put_lat", "put 8 B, half round trip", "us", "lower", 1.0),
             Row("msg_lat", "message 8 B, round trip", "us", "lower", 1.0),
             Row("cswap_lat", "compare_swap", "us", "lower", 1.0)]
    for group, (test, *_) in TESTS.items():
        if test.endswith("_bw"):
            found.append(Row(group, f"{test[:3]} {group[7:]}", "GB/s", "higher", 1.0))
    for group, (test, *_) in SHARED.items():
        text = group.split(" ", 2)[2]
        target = SHARED_TARGET if text == "64 MiB" and len(context.cores) >= 16 else None
        found.append(Row(group, f"{test[:3]} {text}, several threads", "GB/s", "higher", target))
    return found


def groups(context):
    return [*TESTS, *(SHARED if len(context.cores) >= SHARED_CORES else ())]


def word(group, scale, test=None):
    name, size, iterations, warmup = {**TESTS, **SHARED}[group]
    return f"{test or name}:{size}:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}"


class Weft(Ours):
    PROGRAM = "bench_fabric"
    ENV = {}

    def test(self, group, scale, test=None):
        pinned = None if group in SHARED else [self.context.core(0), self.context.core(1)]
        out = nodes(2, [self.program, word(group, scale, test)], pinned, env=self.ENV)
        return values(out, lambda line: group)

    def measure(self, group, scale):
        return self.test(group, scale)


class OneThread(Weft):
    """weft without helper threads for copies."""
    peer = "weft, one thread"
    ENV = {"WEFT_COPY_THREADS": "1"}

    def measure(self, group, scale):
        return self.test(group, scale) if group in SHARED else {}


class Machine(Weft):
    """The limit of the same two cores, with plain loads and stores."""
    peer = "machine"
    limit = True

    def measure(self, group, scale):
        if group in ("msg_lat", "cswap_lat") or group in SHARED:
            return {}
        return self.test(group, scale, "line_lat" if group == "put_lat" else "copy_bw")


class UCX(Side):
    peer = "UCX"
    TRANSPORTS = ("posix", "posix,cma")
    # ucx_perftest's tests for ours, and the column read: messages a second, or MiB/s
    NAMES = {"put_lat": ("ucp_put_lat",), "msg_lat": ("ucp_am_lat", "tag_lat"), "cswap_lat": ("ucp_cswap",),
             "put_bw": ("ucp_put_bw",), "get_bw": ("ucp_get",)}

    def __init__(self, context):
        self.context = context

    def missing(self):
        return None if shutil.which("ucx_perftest") else "ucx_perftest is not installed (Debian: ucx-utils)"

    def one(self, transport, name, size, iterations, warmup):
        env = {"UCX_TLS": transport, "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_LEVEL": "error"}
        out = ask(lambda port: start(["ucx_perftest", "-p", str(port), "-c", str(self.context.core(0))], env=env),
                  lambda port: start(["ucx_perftest", "localhost", "-p", str(port), "-c", str(self.context.core(1)), "-t", name,
                                      "-s", str(size), "-n", str(iterations), "-w", str(warmup), "-f", "-v"], env=env), 60)
        lines = [line for line in out.splitlines() if line.count(",") == 7]
        if len(lines) < 2:
            raise Missing("ucx_perftest's output is not understood")
        figures = dict(zip(lines[-2].split(","), lines[-1].split(",")))
        # The latency column has three digits only; the rate is its inverse in full.
        return float(figures["overall_mr"]), float(figures["overall_bw"])

    def measure(self, group, scale):
        if group in SHARED:
            return {}
        test, size, iterations, warmup = TESTS[group]
        got = {}
        for transport in self.TRANSPORTS:
            for name in self.NAMES[test]:
                rate, mib = self.one(transport, name, size, scaled(iterations, scale), scaled(warmup, scale, 1))
                variant = transport if len(self.NAMES[test]) == 1 else f"{transport} {name}"
                if test.endswith("_bw"):
                    got[variant] = mib * 2**20 / 1e9
                else:
                    got[variant] = 1e6 / rate * (2 if test == "msg_lat" else 1)
        return {group: got}


class Libfabric(Side):
    peer = "libfabric shm"

    def __init__(self, context):
        self.context, self.program = context, context.program("peer_libfabric")

    def missing(self):
        why = self.context.need(self.program)
        return why and why + " (needs libfabric; Debian: libfabric-dev)"

    def measure(self, group, scale):
        if group in SHARED:
            return {}
        got = {}
        for variant, env in (("CMA", {}), ("no CMA", {"FI_SHM_DISABLE_CMA": "1"})):
            for name in ("msg_lat", "tag_lat") if group == "msg_lat" else (None,):
                out = run([self.program, word(group, scale, name)], env=env)
                got[variant + (" tagged" if name == "tag_lat" else "")] = values(out, lambda line: group)[group]
        return {group: got}


def sides(context):
    return [Weft(context), UCX(context), Libfabric(context), OneThread(context), Machine(context)]
