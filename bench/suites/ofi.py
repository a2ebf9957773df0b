# SPDX-License-Identifier: MIT
"""The ofi transport over TCP beside bare libfabric, UCX and iperf3: over loopback, and between two network namespaces."""
import filecmp
import json
import os
import resource
import shutil
import subprocess
import time

from rig import OUT, Missing, Row, Side, ask, free_port, run, scaled, start, together, values

NAME = "ofi"
TITLE = "operations over TCP by libfabric, one process on each core, beside libfabric itself"

PLACES = ("loopback", "namespaces")
SIZES = ((64 << 10, "64 KiB", 20000), (1 << 20, "1 MiB", 2000), (16 << 20, "16 MiB", 100), (64 << 20, "64 MiB", 30))
# test: (ours, bytes, iterations)
TESTS = {"put": ("signal_typical", 8, 20000), "message": ("msg_typical", 8, 20000), "add": ("add_typical", 8, 20000),
         "rate": ("put_rate", 64, 500000)}
for _bytes, _text, _iterations in SIZES:
    TESTS[f"put {_text}"] = ("put_bw", _bytes, _iterations)
    TESTS[f"get {_text}"] = ("get_bw", _bytes, _iterations)
TWO_WAYS = ("message", "add")  # there and back; the peers' programs print half of that
PROVIDERS = ("tcp;ofi_rxm", "net")  # those of libfabric 1.17 for reliable datagrams over TCP
NODES = (2, 16, 64)
UCX_MOST = 1 << 20  # of larger ones its TCP moves 30 MB/s here: they would take most of the time
MAP_BYTES, LINK_BITS = 10**9, 10**10  # a job of weft map, and the link between its two hosts
LATENCY, RATE, BANDWIDTH, IDLE_KIB, MAP = 1.15, 8, 0.95, 64, 1.1


def rows(context):
    found = []
    bare = [f"fi_pingpong {p}" for p in PROVIDERS[:1]]
    for place in PLACES:
        found += [Row(f"{place} put", f"put and signal 8 B, half round trip, {place}", "us", "lower", LATENCY, against=bare),
                  Row(f"{place} message", f"message 8 B, round trip, {place}", "us", "lower", LATENCY, against=bare),
                  Row(f"{place} add", f"fetch_add, {place}", "us", "lower", LATENCY, against=bare),
                  Row(f"{place} rate", f"puts of 64 B, {place}", "M/s", "higher", RATE, against=("libfabric tcp;ofi_rxm",))]
        found += [Row(f"{place} {kind} {text}", f"{kind} {text}, {place}", "GB/s", "higher", BANDWIDTH, against=("libfabric tcp;ofi_rxm",))
                  for kind in ("put", "get") for _, text, _ in SIZES]
    found += [Row("memory peer", f"memory of a connection (wanted: under {IDLE_KIB})", "KiB", "lower")]
    found += [Row(f"{what} {n}", text.format(n), unit, "lower") for n in NODES
              for what, text, unit in (("memory", "memory of one of {} nodes, all connected", "MiB"),
                                       ("join", "{} nodes: joining", "ms"), ("meet", "{} nodes: the first message of each to each", "ms"))]
    found += [Row("map", "weft map of 1 GB, all pieces on the other host, without its start, link of 10 Gb/s", "s", "lower", MAP, against=(Link.peer,)),
              Row("map start", "weft map on two hosts: its start", "s", "lower"),
              Row("map processors", "processor time of it, both hosts and the commands together", "s", "lower"),
              Row("map moved", "bytes that the link carried for it, each way", "GB", "lower")]
    return found


def groups(context):
    return [f"{place} {test}" for place in PLACES for test in TESTS] + ["memory", "map"]


class Hosts:
    """Two network namespaces and a pair of interfaces between them, for as long as any side needs them."""
    addresses = ("10.78.0.1", "10.78.0.2")

    def __init__(self, bits=None):
        self.bits = bits  # a second, each way; None: as fast as it goes
        self.held = []
        self.user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]

    def open(self):
        if self.held:
            return
        keep = ["--mount", "--net", "--", "sh", "-ec", "mount -t sysfs sysfs /sys; echo here; exec cat"]  # UCX looks there for devices
        try:
            self.hold(["unshare", *(["--map-root-user"] if self.user else []), *keep])
            self.hold([*(["nsenter", "-t", str(self.held[0].pid), *self.user, "--"] if self.user else []), "unshare", *keep])
            self.ip(0, "link", "add", "bench0", "type", "veth", "peer", "name", "bench0", "netns", str(self.held[1].pid))
            for i in (0, 1):
                self.ip(i, "addr", "add", f"{self.addresses[i]}/24", "dev", "bench0")
                self.ip(i, "link", "set", "bench0", "up")
                self.ip(i, "link", "set", "lo", "up")
                if self.bits:
                    subprocess.run(self.on(i, ["tc", "qdisc", "add", "dev", "bench0", "root", "tbf", "rate", f"{self.bits}bit", "burst", "256k",
                                               "latency", "5ms"]), check=True)
        except (OSError, subprocess.CalledProcessError) as why:
            self.close()
            raise Missing(f"no network namespaces can be made here ({why})") from why

    def hold(self, argv):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held.append(process)
        if process.stdout.readline() != "here\n":
            raise OSError("unshare failed")

    def ip(self, host, *words):
        subprocess.run(self.on(host, ["ip", *words]), check=True)

    def sent(self, host):
        """Bytes that a host has sent to the other."""
        return int(run(self.on(host, ["cat", "/sys/class/net/bench0/statistics/tx_bytes"])))

    def on(self, host, argv):
        return ["nsenter", "-t", str(self.held[host].pid), *self.user, "-m", "-n", "--", *argv]

    def close(self):
        for process in self.held:
            process.stdin.close()
            process.wait()
            process.stdout.close()
        self.held = []


class OnNetwork(Side):
    hosts = Hosts()  # one pair for all sides
    slow = Hosts(LINK_BITS)

    def __init__(self, context):
        self.context = context

    def finish(self):
        self.hosts.close()
        self.slow.close()

    def place(self, group):
        """How to start something on host i, the hosts' addresses, and the test."""
        if group == "map":
            self.slow.open()
            return self.slow.on, self.slow.addresses, group
        place, test = group.split(" ", 1)
        if place == "loopback":
            return lambda host, argv: argv, ("127.0.0.1", "127.0.0.1"), test
        self.hosts.open()
        return self.hosts.on, self.hosts.addresses, test

    def served(self, group, server, client):
        """Start a server on host 1 and then its client on host 0, each by a function of the port: what the client prints."""
        on, addresses, test = self.place(group)
        return ask(lambda port: start(on(1, server(port, addresses[1])), self.context.core(1), self.env(group)),
                   lambda port: start(on(0, client(port, addresses[1])), self.context.core(0), self.env(group)), 120)

    def env(self, group):
        return {}


class Weft(OnNetwork):
    provider = None

    def __init__(self, context):
        super().__init__(context)
        self.program, self.memory = context.program("bench_fabric"), context.program("bench_memory")
        self.weft = os.path.join(context.build, "src", "cli", "weft")

    def missing(self):
        return self.context.need(self.program) or self.context.need(self.memory) or self.context.need(self.weft)

    def env(self, group):
        return {"WEFT_TRANSPORT": "ofi", **({"WEFT_OFI_PROVIDER": self.provider} if self.provider else {})}

    def measure(self, group, scale):
        if group == "memory":
            return self.measure_memory()
        if group == "map":
            return Map(self).measure(scale) if not self.provider else {}
        on, addresses, test = self.place(group)
        name, size, iterations = TESTS[test]
        count = scaled(iterations, scale, 10)
        env = {**self.env(group), "WEFT_SIZE": "2", "WEFT_COORD": f"{addresses[0]}:{free_port()}"}
        word = f"{name}:{size}:{count}:{max(1, count // 10)}"
        out = together([start(on(rank, [self.program, word]), self.context.core(rank), {**env, "WEFT_RANK": str(rank)})
                        for rank in range(2)], 120)[0]
        return values(out, lambda line: group)

    def measure_memory(self):
        found = {}
        for n in NODES:
            out = run([self.weft, "run", "-n", str(n), "--", self.memory, "peer_memory:0:1:0"], env=self.env("memory"), timeout=300)
            found.update({f"{name} {n}": value for name, value in self.named(out).items()})
        few, many = NODES[1:]  # of 2 nodes each has half of the libraries' pages, which would hide what a connection takes
        found["memory peer"] = (found[f"memory {many}"] - found[f"memory {few}"]) * 1024 / (many - few)
        return found

    def named(self, out):
        found = values(out, lambda line: line["test"])
        return {"memory": found["peer_memory"] / 1024, "join": found["join"], "meet": found["meet"]}


def processors():
    """Seconds of processor time that the processes have used which this one has started, and which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Map:
    """A job of weft map on two hosts. The pieces are on the first one's disk, and their command fails there, so all run on the other."""
    START_BYTES = 1000
    ONLY_THERE = "[ {node} = 1 ] || { sleep 0.05; exit 9; }; exec "
    SSH = """#!/bin/sh
# In place of ssh: a shell on the other host.
while [ "$1" != -- ]; do shift; done
shift 2
exec %s sh -c "$*"
"""

    def __init__(self, side):
        self.weft, self.hosts = side.weft, side.slow

    def prepare(self):
        self.hosts.open()
        os.makedirs(OUT, exist_ok=True)
        self.ssh, self.hostfile = os.path.join(OUT, "ofi-ssh"), os.path.join(OUT, "ofi-hosts.json")
        with open(self.ssh, "w", encoding="utf-8") as f:
            f.write(self.SSH % " ".join(self.hosts.on(1, [])))
        os.chmod(self.ssh, 0o755)
        with open(self.hostfile, "w", encoding="utf-8") as f:
            json.dump({"weft": 1, "hosts": [{"ssh": "localhost", "ips": [self.hosts.addresses[0]]}, {"ssh": "other", "ips": [self.hosts.addresses[1]]}]}, f)

    @staticmethod
    def file(size):
        path = os.path.join(OUT, f"ofi-{size}")
        if not os.path.exists(path) or os.path.getsize(path) != size:
            with open(path, "wb") as f:
                part = os.urandom(1 << 20)
                for at in range(0, size, len(part)):
                    f.write((at.to_bytes(8, "little") + part[8:])[:size - at])
        return path

    def job(self, size, command, out=None, where=ONLY_THERE):
        """Seconds; what it printed, unless that goes to the file `out`."""
        argv = [self.weft, "map", "--hostfile", self.hostfile, "--block", "4M", "--retries", "1000", self.file(size), "--", "sh", "-c",
                where + command]
        began = time.monotonic()
        if out:
            with open(out, "wb") as f:
                said = together([start(self.hosts.on(0, argv), env={"WEFT_SSH": self.ssh, "WEFT_TRANSPORT": "ofi"}, stdout=f)], 300)
        else:
            said = run(self.hosts.on(0, argv), env={"WEFT_SSH": self.ssh, "WEFT_TRANSPORT": "ofi"}, timeout=300)
        return time.monotonic() - began, said

    def measure(self, scale):
        size = max(10**7, int(MAP_BYTES * scale))
        self.prepare()
        copy = os.path.join(OUT, "ofi-map.part")
        try:
            self.job(size, "cat", copy)
            if not filecmp.cmp(self.file(size), copy, shallow=False):
                raise Missing("its output is not the input")
        finally:
            if os.path.exists(copy):
                os.unlink(copy)
        begun, _ = self.job(self.START_BYTES, "wc -c", where="")  # on either host: a failure there first would count as start
        before, used = [self.hosts.sent(i) for i in (0, 1)], processors()
        took, said = self.job(size, "wc -c")
        used = processors() - used
        moved = [self.hosts.sent(i) - b for i, b in enumerate(before)]
        if sum(map(int, said.split())) != size:
            raise Missing("its pieces are not the whole input")
        return {"map": (took - begun) * MAP_BYTES / size, "map start": begun, "map processors": used * MAP_BYTES / size,
                "map moved": max(moved) * MAP_BYTES / size / 1e9}


class Link(Side):
    peer = "the link"

    def measure(self, group, scale):
        return {"map": MAP_BYTES * 8 / LINK_BITS} if group == "map" else {}


class Other(Weft):
    """The providers that weft does not choose by itself, or does."""

    def __init__(self, context, provider):
        super().__init__(context)
        self.peer, self.provider = f"weft, {provider}", provider


class Pingpong(OnNetwork):
    """Messages there and back, half a round trip."""

    def __init__(self, context, provider):
        super().__init__(context)
        self.peer, self.provider = f"fi_pingpong {provider}", provider

    def missing(self):
        return None if shutil.which("fi_pingpong") else "fi_pingpong is not installed (Debian: libfabric-bin)"

    def measure(self, group, scale):
        test = group.partition(" ")[2]
        if test not in ("put", *TWO_WAYS):
            return {}
        argv = ["fi_pingpong", "-p", self.provider, "-e", "rdm", "-S", "64", "-I", str(scaled(20000, scale, 100))]
        out = self.served(group, lambda port, address: [*argv, "-B", str(port)],
                          lambda port, address: [*argv, "-P", str(port), address])
        lines = [line.split() for line in out.splitlines() if line.split()[:1] == ["64"]]
        if not lines or len(lines[-1]) < 8:
            raise Missing("fi_pingpong's output is not understood")
        return {group: float(lines[-1][6]) * (2 if test in TWO_WAYS else 1)}


class UCX(OnNetwork):
    peer = "UCX over tcp"
    NAMES = {"put": "ucp_put_lat", "message": "ucp_am_lat", "add": "ucp_fadd"}

    def missing(self):
        return None if shutil.which("ucx_perftest") else "ucx_perftest is not installed (Debian: ucx-utils)"

    def env(self, group):
        return {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo" if group.startswith("loopback") else "bench0",
                "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_LEVEL": "error"}

    def measure(self, group, scale):
        test = group.partition(" ")[2]
        if test in self.NAMES:
            name, size, iterations = self.NAMES[test], 8, 20000
        elif test in TESTS and test != "rate" and TESTS[test][1] <= UCX_MOST:
            kind, size, iterations = TESTS[test]
            name = "ucp_put_bw" if kind == "put_bw" else "ucp_get"
        else:
            return {}
        count = scaled(iterations, scale, 10)
        out = self.served(group, lambda port, address: ["ucx_perftest", "-p", str(port)],
                          lambda port, address: ["ucx_perftest", address, "-p", str(port), "-t", name, "-s", str(size), "-n", str(count),
                                                 "-w", str(max(1, count // 10)), "-f", "-v"])
        lines = [line for line in out.splitlines() if line.count(",") == 7]
        if len(lines) < 2:
            raise Missing("ucx_perftest's output is not understood")
        figures = dict(zip(lines[-2].split(","), lines[-1].split(",")))
        if test in self.NAMES:
            return {group: 1e6 / float(figures["overall_mr"]) * (2 if test == "message" else 1)}
        return {group: float(figures["overall_bw"]) * 2**20 / 1e9}


class Libfabric(OnNetwork):
    """A bare loop of fi_write and fi_read, 64 in flight; and of fi_inject. A write is complete when the sender's kernel has it; `confirmed`: when it is at
    the target, as weft's are."""
    NAMES = {"put_bw": "put_bw", "get_bw": "get_bw", "put_rate": "send_rate"}

    def __init__(self, context, provider, confirmed=False):
        super().__init__(context)
        self.peer, self.provider, self.program = f"libfabric {provider}" + ", confirmed" * confirmed, provider, context.program("peer_libfabric")
        self.confirmed = confirmed

    def missing(self):
        why = self.context.need(self.program)
        return why and why + " (needs libfabric; Debian: libfabric-dev)"

    def measure(self, group, scale):
        if group in ("memory", "map"):
            return {}
        on, addresses, test = self.place(group)
        name, size, iterations = TESTS[test]
        if name not in self.NAMES or (self.confirmed and name != "put_bw"):
            return {}
        count = scaled(iterations, scale, 10)
        env = {"PEER_PROVIDER": self.provider, "PEER_ADDRESSES": ",".join(addresses), **({"PEER_CONFIRMED": "1"} if self.confirmed else {})}
        if group.startswith("namespaces"):
            env["PEER_NAMESPACE"] = f"/proc/{self.hosts.held[1].pid}/ns/net"
        return values(run(on(0, [self.program, f"{self.NAMES[name]}:{size}:{count}:{max(1, count // 10)}"]), env=env), lambda line: group)


class Iperf(OnNetwork):
    """One stream of bytes that nobody looks at."""
    peer, limit = "iperf3, one stream", True

    def missing(self):
        return None if shutil.which("iperf3") else "iperf3 is not installed (Debian: iperf3)"

    def measure(self, group, scale):
        test = group.partition(" ")[2]
        if group != "map" and not test.startswith("put "):
            return {}
        out = self.served(group, lambda port, address: ["iperf3", "-s", "-1", "-p", str(port)],
                          lambda port, address: ["iperf3", "-c", address, "-p", str(port), "-t", "1", "-J"])
        rate = json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8e9
        return {"map": MAP_BYTES / 1e9 / rate} if group == "map" else {group: rate}


def sides(context):
    return [Weft(context), *(Other(context, p) for p in PROVIDERS), *(Pingpong(context, p) for p in PROVIDERS), UCX(context),
            *(Libfabric(context, p) for p in PROVIDERS), *(Libfabric(context, p, confirmed=True) for p in PROVIDERS), Iperf(context), Link()]
