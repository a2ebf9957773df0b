# SPDX-License-Identifier: MIT
"""The tb transport beside perftest's bare UC sends, on one softverbs device like a Mac's, and beside rc on a generic one."""
import os
import tempfile

from rig import Row, Side, run, scaled, values
from suites import rc

NAME = "tb"
TITLE = "operations over a device that can only send and receive, one process on each core, beside perftest's UC sends on it"

# group: (our test, bytes, iterations, perftest's program, its bytes, what of its figure to compare with)
TESTS = {
    "put 64": ("signal_typical", 64, 50000, "ib_send_lat", 64, 1.0),
    "put 4096": ("signal_typical", 3840, 50000, "ib_send_lat", 4096, 1.0),
    "get": ("get_typical", 8, 50000, "ib_send_lat", 64, 1.0),
    "add": ("add_typical", 8, 50000, "ib_send_lat", 64, 1.0),
    "rate": ("put_rate", 64, 1000000, "ib_send_bw", 64, 1.0),
    "bulk 1M": ("put_bw", 1 << 20, 2000, "ib_send_bw", 1 << 20, 1.0),
    "bulk 64M": ("put_bw", 64 << 20, 40, "ib_send_bw", 64 << 20, 1.0),
    "links": ("links", 1 << 20, 1000, "ib_send_bw", 1 << 20, 1.0),
}
DEEP = {64: 64, 1 << 20: 14, 4 << 20: 2, 64 << 20: 2}  # messages of perftest's in flight
LANES = "32K:32,512K:14"  # larger lanes than the default, because a message costs a system call on softverbs


def rows(context):
    wanted = {"against": ("perftest",)}
    return [Row("put 64", "put of 64 B and its signal, one way", "us", "lower", 1.3, **wanted),
            Row("put 4096", "put of 3840 B and its signal, one way", "us", "lower", 1.3, **wanted),
            Row("get", "get of 8 B", "us", "lower", 2.2, **wanted), Row("add", "fetch_add", "us", "lower", 2.2, **wanted),
            Row("rate", "puts of 64 B", "M/s", "higher", 8, **wanted),
            Row("bulk 1M", "put of 1 MiB", "GB/s", "higher", 0.9, **wanted),
            Row("bulk 64M", "put of 64 MiB", "GB/s", "higher", 0.9, **wanted),
            Row("bulk 1M sampled", "put of 1 MiB, frames checked by samples", "GB/s", "higher", 0.97, **wanted),
            Row("bulk 64M sampled", "put of 64 MiB, frames checked by samples", "GB/s", "higher", 0.97, **wanted),
            Row("links", "puts of 1 MiB over three cables (others: over one)", "GB/s", "higher", 2.5, against=("tb, one cable",))]


def groups(context):
    return [*TESTS]


class OnCable(rc.OnDevice):
    """Hosts with a cable between each two for as long as the side is measured."""
    profile, topology = os.path.join(os.path.dirname(__file__), "..", "profiles", "tb5-perftest.json"), ["mesh", "4"]

    def missing(self):
        return self.context.need(self.command)

    def prepare(self):
        super().prepare()
        import subprocess
        subprocess.run([self.command, "up", "--fabric", "bench", "--profile", self.profile, *self.topology],
                       env={**os.environ, **self.env}, check=True, stdout=subprocess.DEVNULL)


class Weft(OnCable):
    cables = 3
    transport, lanes = "tb", LANES

    def __init__(self, context):
        super().__init__(context)
        self.program, self.links = context.program("bench_fabric"), context.program("bench_links")

    def missing(self):
        return super().missing() or self.context.need(self.program)

    def measure(self, group, scale):
        found = self.run_test(group, scale, "full")
        if group.startswith("bulk"):
            found.update({f"{group} sampled": value for value in self.run_test(group, scale, "frames").values()})
        return found

    def run_test(self, group, scale, check):
        test, size, iterations, *_ = TESTS[group]
        count = scaled(iterations, scale, 10)
        nodes, program = (2, self.program) if group != "links" else (4, self.links)
        env = {"WEFT_SIZE": str(nodes), "WEFT_COORD": "unix:@weft-bench-%x" % int.from_bytes(os.urandom(8), "big"),
               "WEFT_TRANSPORT": self.transport, "WEFT_TB_CHECK": check, "WEFT_TB_LANES": self.lanes}
        word = f"{test}:{size}:{count}:{max(1, count // 10)}"
        out = self.pair([([program, word], {"WEFT_RANK": str(rank)}) for rank in range(nodes)], env)
        if group == "links":
            return {group: values(out, lambda line: line["test"])[f"links {self.cables}"]}
        return values(out, lambda line: group)


class Small(Weft):
    """weft's default lanes: on a real cable a message costs less than on softverbs, and small messages are repaired faster."""
    peer, lanes = "tb, lanes by default", "32K:32,128K:16,128K:16"

    def measure(self, group, scale):
        return self.run_test(group, scale, "full") if group.startswith("bulk") else {}


class One(Weft):
    """Puts to one of three peers. Here all three share the processor that copies for them, unlike real cables."""
    peer, cables = "tb, one cable", 1

    def measure(self, group, scale):
        return super().measure(group, scale) if group == "links" else {}


class Rc(Weft):
    peer, transport = "rc on a generic device", "rc"
    profile, topology = "generic", ["switch", "4"]

    def measure(self, group, scale):
        return self.run_test(group, scale, "full")


class Perftest(OnCable, rc.Perftest):
    peer, size = "perftest", None

    def one(self, group, scale, more):
        raise NotImplementedError

    def measure(self, group, scale):
        _, _, iterations, program, size, factor = TESTS[group]
        size = self.size or size
        count = min(scaled(iterations, scale, 100), 4000 if program == "ib_send_lat" else 200000)
        argv = [program, "-F", "-c", "UC", "-x", "1", "-s", str(size), "-n", str(count)]
        if program == "ib_send_bw":
            argv += ["-N", "-t", str(DEEP[size]), "-r", str(DEEP[size])]
        fields = self.run_pair(argv, size)
        if program == "ib_send_lat":
            return {group: float(fields[4]) * factor}
        value = float(fields[4]) if group == "rate" else float(fields[4]) * size / 1e3
        return {group: value, **({f"{group} sampled": value} if group.startswith("bulk") else {})}


class Cached(Perftest):
    """The same 4 MiB again and again, which stay in a processor's cache; 64 MiB cannot."""
    peer, size = "perftest, messages of 4 MiB", 4 << 20

    def measure(self, group, scale):
        return {group: super().measure(group, 10 * scale)[group]} if group == "bulk 64M" else {}


class Copy(Side):
    """The limit of this machine: one processor copies and computes checksums, the other reads the received bytes and checks them."""
    peer, limit = "copied and summed at both ends", True
    tests = {"put 64": ("frame_lat", 64, 1), "put 4096": ("frame_lat", 3840, 1), "get": ("frame_lat", 64, 2), "add": ("frame_lat", 64, 2),
             "bulk 1M": ("check_bw", 1 << 20, 1), "bulk 64M": ("check_bw", 64 << 20, 1), "links": ("check_bw", 1 << 20, 1)}

    def __init__(self, context):
        self.context, self.program = context, context.program("peer_cross_memory")

    def missing(self):
        return self.context.need(self.program)

    def measure(self, group, scale):
        if group not in self.tests:
            return {}
        test, size, ways = self.tests[group]
        count = scaled(TESTS[group][2], scale, 10)
        found = values(run([self.program, f"{test}:{size}:{count}:{max(1, count // 10)}"]), lambda line: group)
        return {group: ways * value for group, value in found.items()}


def sides(context):
    return [Weft(context), Perftest(context), Cached(context), Copy(context), Small(context), One(context), Rc(context)]
