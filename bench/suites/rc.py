# SPDX-License-Identifier: MIT
"""The rc transport beside Debian's perftest, on one device: softverbs, or with --rxe the kernel's rdma_rxe."""
import json
import os
import shutil
import subprocess
import tempfile

from rig import Missing, Row, Side, ask, start, together, values, scaled

NAME = "rc"
TITLE = "operations over reliable connections, one process on each core, beside perftest on the same device"

SIZES = ((64 << 10, "64 KiB", 20000), (256 << 10, "256 KiB", 5000), (1 << 20, "1 MiB", 1000))
# group: (our test, perftest's program, bytes, iterations)
TESTS = {"put_lat": ("put_typical", "ib_write_lat", 8, 50000), "get_lat": ("get_typical", "ib_read_lat", 8, 50000),
         "msg_lat": ("msg_typical", "ib_send_lat", 8, 50000), "put_rate": ("put_rate", "ib_write_bw", 8, 200000)}
for _bytes, _text, _iterations in SIZES:
    TESTS[f"put_bw {_text}"] = ("put_bw", "ib_write_bw", _bytes, _iterations)
    TESTS[f"get_bw {_text}"] = ("get_bw", "ib_read_bw", _bytes, _iterations)
RAILS = (1, 2, 4)  # devices of each node that are used together; on softverbs all of them are this machine's processors copying
NODES = (2, 8, 32, 64)
MESSAGES = 100  # more than receives are kept for a peer: all of them have been used then
DEVICE = os.environ.get("BENCH_DEVICE")  # of this machine; else softverbs
SLOWER = 10  # times fewer iterations on such a device: a kernel's software device in an emulated machine


def rows(context):
    found = [Row("put_lat", "put 8 B, half round trip", "us", "lower", 1.1), Row("get_lat", "get 8 B", "us", "lower", 1.1),
             Row("msg_lat", "message 8 B, round trip", "us", "lower", 1.1),
             Row("put_rate", "puts of 8 B", "M/s", "higher", 0.9)]
    for _, text, _ in SIZES:
        found.append(Row(f"put_bw {text}", f"put {text}", "GB/s", "higher", 0.95))
    for _, text, _ in SIZES:
        found.append(Row(f"get_bw {text}", f"get {text}", "GB/s", "higher"))
    if not DEVICE:
        found += [Row(f"rails {kind} {text} {n}", f"{kind} {text} by {n} rail{'s' if n > 1 else ''}", "GB/s", "higher")
                  for kind in ("put", "get") for _, text, _ in SIZES[1:] for n in RAILS]
        found += [Row(f"memory {n}", f"memory of one of {n} nodes", "MiB", "lower") for n in NODES]
        found += [Row("memory peer", "memory a peer that is connected", "KiB", "lower"),
                  Row("memory busy", f"memory a peer after {MESSAGES} messages", "KiB", "lower"),
                  Row("memory 1000", "memory with 1,000 busy peers, computed", "MiB", "lower")]
    return found


def groups(context):
    return [*TESTS] if DEVICE else [*TESTS, *(f"rails {kind} {text}" for kind in ("put", "get") for _, text, _ in SIZES[1:]), "memory"]


class OnDevice(Side):
    """A fabric of softverbs for as long as the side is measured; or the device named."""
    hosts = 2

    def __init__(self, context):
        self.context = context
        self.command = os.path.join(context.build, "softverbs", "cli", "softverbs")
        self.folder, self.env, self.made = None, {}, False

    def missing(self):
        return None if DEVICE else self.context.need(self.command)

    def prepare(self):
        if not DEVICE:
            shm = "/dev/shm"
            self.folder = tempfile.TemporaryDirectory(prefix="bench-rc-", dir=shm if os.path.isdir(shm) else None)
            self.env = {"SOFTVERBS_DIR": self.folder.name}

    def finish(self):
        if self.folder:
            self.folder.cleanup()

    def on(self, host, argv, fabric="bench"):
        return argv if DEVICE else [self.command, "run", "--fabric", fabric, "--host", str(host), "--", *argv]

    def core(self, i):
        return None if DEVICE else self.context.core(i)  # a kernel's software device has threads of its own on each core

    def count(self, iterations, scale):
        return scaled(iterations, scale / SLOWER if DEVICE else scale, 100)

    def pair(self, argvs, env, fabric="bench"):
        """Runs both nodes at the same time, and returns the output of the first."""
        return together([start(self.on(i, argv, fabric), self.core(i), {**self.env, **env, **own})
                         for i, (argv, own) in enumerate(argvs)], 120)[0]


class Weft(OnDevice):
    def __init__(self, context):
        super().__init__(context)
        self.program, self.memory = context.program("bench_fabric"), context.program("bench_memory")
        self.weft = os.path.join(context.build, "src", "cli", "weft")

    def missing(self):
        return super().missing() or self.context.need(self.program) or self.context.need(self.memory)

    def measure(self, group, scale):
        if group == "memory":
            return self.measure_memory()
        if group.startswith("rails "):
            return self.measure_rails(group, scale)
        test, _, size, iterations = TESTS[group]
        return values(self.run_test(test, size, iterations, scale, {}), lambda line: group)

    def measure_rails(self, group, scale):
        """Uses so many of the fabric's devices; the machine's copying limits all of them together."""
        if not self.made:
            devices = [[{"interface": f"en{k}", "ipv4": f"10.0.{k}.{host + 1}"} for k in range(max(RAILS))] for host in range(2)]
            path = os.path.join(self.folder.name, "rails.json")
            with open(path, "w") as file:
                json.dump({"name": "rails", "switch": True, "hosts": [{"name": str(i), "devices": d} for i, d in enumerate(devices)]}, file)
            subprocess.run([self.command, "up", "--fabric", "rails", path], env={**os.environ, **self.env}, check=True,
                           stdout=subprocess.DEVNULL)
            self.made = True
        _, kind, text = group.split(" ", 2)
        size, iterations = next((size, n) for size, name, n in SIZES if name == text)
        found = {}
        for n in RAILS:
            out = self.run_test(f"{kind}_bw", size, iterations, scale, {"WEFT_RAILS": str(n), "WEFT_STRIPE": "64K"}, "rails")
            found.update(values(out, lambda line: f"{group} {n}"))
        return found

    def finish(self):
        if self.made:
            subprocess.run([self.command, "down", "--fabric", "rails"], env={**os.environ, **self.env}, stdout=subprocess.DEVNULL)
        super().finish()

    def run_test(self, test, size, iterations, scale, more, fabric="bench"):
        count = self.count(iterations, scale)
        env = {**more, "WEFT_SIZE": "2", "WEFT_COORD": "unix:@weft-bench-%x" % int.from_bytes(os.urandom(8), "big"),
               "WEFT_TRANSPORT": "rc", "BENCH_PATIENT": "1", **({"WEFT_DEVICE": DEVICE} if DEVICE else {})}
        word = f"{test}:{size}:{count}:{max(1, count // 10)}"
        return self.pair([([self.program, word], {"WEFT_RANK": str(rank)}) for rank in range(2)], env, fabric)

    def measure_memory(self):
        def kib(n, messages):
            out = together([start([self.weft, "run", "-n", str(n), "--softverbs", f"switch:{NODES[-1]}", "--", self.memory,
                                   f"peer_memory:0:{messages}:0"])], 300)[0]
            return values(out, lambda line: line["test"])["peer_memory"]
        few, many = NODES[0], NODES[-1]
        quiet = {n: kib(n, 1) for n in NODES}
        busy = {n: kib(n, MESSAGES) for n in (few, many)}
        peer = (busy[many] - busy[few]) / (many - few)
        return {**{f"memory {n}": quiet[n] / 1024 for n in NODES}, "memory peer": (quiet[many] - quiet[few]) / (many - few),
                "memory busy": peer, "memory 1000": (busy[few] + 999 * peer) / 1024}


class Perftest(OnDevice):
    """perftest's typical (median) time, as for weft, and its average rates. Small writes: 128 in flight, as weft's; once with
    perftest's default and once with inline data (-I), as weft sends them: the better result counts."""
    peer = "perftest"

    def missing(self):
        return super().missing() or (None if shutil.which("ib_write_lat") else "perftest is not installed (Debian: perftest)")

    def one(self, group, scale, more):
        _, program, size, iterations = TESTS[group]
        argv = [program, "-F", "-s", str(size), "-n", str(max(self.count(iterations, scale), 200)), *more]
        argv += ["-N"] if program.endswith("_bw") else []
        argv += ["-d", DEVICE, "-x", "1"] if DEVICE else []
        fields = self.run_pair(argv, size)
        # latency: size, iterations, min, max, typical ...; rate: size, iterations, peak, average, messages (M/s)
        if not program.endswith("_bw"):
            return float(fields[4]) * (2 if program == "ib_send_lat" else 1)
        return float(fields[4]) if group == "put_rate" else float(fields[4]) * size / 1e3

    def run_pair(self, argv, size):
        """The line of figures that the client prints."""
        out = ask(lambda port: start(self.on(1, [*argv, "-p", str(port)]), self.core(1), self.env),
                  lambda port: start(self.on(0, [*argv, "-p", str(port), "127.0.0.1"]), self.core(0), self.env), 120, 30)
        for line in out.splitlines():
            fields = line.split()
            if len(fields) > 4 and fields[0] == str(size):
                return fields
        raise Missing(f"{argv[0]}'s output is not understood")

    def measure(self, group, scale):
        if group == "memory" or group.startswith("rails "):
            return {}
        if group != "put_rate":
            return {group: self.one(group, scale, [])}
        return {group: {"by itself": self.one(group, scale, []), "-I 64": self.one(group, scale, ["-I", "64"])}}


def sides(context):
    return [Weft(context), Perftest(context)]
