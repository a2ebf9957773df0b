# SPDX-License-Identifier: MIT
"""Files that a gateway has read for other nodes of its host, beside what a program reads by itself."""
import getpass
import os
import shutil
import subprocess
import time

from rig import Missing, Ours, Row, end, free_port, nodes, run, scaled, start, together, values
from suites import nfs, ofi, ssh

NAME = "file"
TITLE = "files of a node, cached for others"

MIB = 1 << 20
MOUNT_S = 20
TOPO_BLOCK = 1 << 20
LINK_BITS = 10**9  # of each host's link, in the rows with several hosts
# group: (test, nodes, bytes, iterations, warm-up). After the warm-up all pieces are in huge pages.
TESTS = {"read": ("read", 2, 64 * MIB, 60, 150), "map": ("map", 2, 64 * MIB, 60, 150), "cold": ("cold", 5, 256 * MIB, 1, 0),
         "far": ("read", 2, 64 * MIB, 20, 12), "far map": ("map", 2, 64 * MIB, 20, 12), "hosts": ("cold", 5, 128 * MIB, 1, 0)}
FAR = ("far", "far map")
if nfs.inside():  # an emulated processor: less work, and only what NFS can do as well
    TESTS = {"read": ("read", 2, 16 * MIB, 10, 20), "cold": ("cold", 5, 64 * MIB, 1, 0)}


def rows(context):
    cold = TESTS["cold"][2] // MIB
    return [Row("read", "read a cached file of another node of the host", "GB/s", "higher", 1, ["pread", "nfs"]),
            Row("map", "map it and sum its words", "GB/s", "higher", 1, ["mmap"]),
            Row("cold", f"four nodes read {cold} MiB that nobody has cached, beside one node", "ms", "lower", 1.2, ["one node"]),
            Row("mounted", f"four nodes read {cold} MiB that nobody has cached, beside four programs below a mount", "ms", "lower", 1, ["sshfs", "nfs"]),
            Row("far", "read a cached file of another host (namespaces)", "GB/s", "higher", 0.9, ["topo"]),
            Row("far map", "map a cached file of another host and sum its words", "GB/s", "higher", 0.9, ["topo"]),
            Row("hosts", "four hosts read 128 MiB that nobody has cached, links of 1 Gb/s, beside one host", "ms", "lower", 1.2, ["one host"]),
            Row("sent", "of it: what the gateway's host sends, in files", "copies", "lower")]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_file"

    def test(self, group, scale, test=None, count=None):
        own, nodes_count, size, iterations, warmup = TESTS[group]
        word = f"{test or own}:{size}:{scaled(iterations, scale, 1)}:{warmup}"
        env = {"BENCH_FILE": str(os.getpid())}
        if test in ("pread", "mmap"):
            return values(run([self.program, word]), lambda line: group)
        return values(nodes(count or nodes_count, [self.program, word], env=env), lambda line: group)

    def measure(self, group, scale):
        if group in (*FAR, "hosts"):
            return {}
        got = self.test(group, scale)
        return {**got, "mounted": got["cold"]} if group == "cold" else got


class Star(ofi.Hosts):
    """Network namespaces, each with one link to a switch, which is a namespace as well."""
    def __init__(self, count, bits=None):
        super().__init__(bits)
        self.addresses = tuple(f"10.79.0.{i + 1}" for i in range(count))

    def open(self):
        if self.held:
            return
        keep = ["--mount", "--net", "--", "sh", "-ec", "mount -t sysfs sysfs /sys; echo here; exec cat"]
        try:
            for i in range(len(self.addresses) + 1):
                inside = ["nsenter", "-t", str(self.held[0].pid), *self.user, "--"] if self.user and i else []
                self.hold([*inside, "unshare", *(["--map-root-user"] if self.user and not i else []), *keep])
            switch = len(self.addresses)
            self.ip(switch, "link", "add", "switch", "type", "bridge")
            self.ip(switch, "link", "set", "switch", "up")
            for i, address in enumerate(self.addresses):
                self.ip(switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "bench0", "netns", str(self.held[i].pid))
                self.ip(switch, "link", "set", f"port{i}", "master", "switch", "up")
                self.ip(i, "addr", "add", f"{address}/24", "dev", "bench0")
                self.ip(i, "link", "set", "bench0", "up")
                self.ip(i, "link", "set", "lo", "up")
                self.shape(i, "bench0")
                self.shape(switch, f"port{i}")
        except (OSError, subprocess.CalledProcessError) as why:
            self.close()
            raise Missing(f"no network namespaces can be made here ({why})") from why

    def shape(self, host, device):
        if self.bits:
            subprocess.run(self.on(host, ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.bits}bit", "burst", "256k",
                                          "latency", "20ms"]), check=True)


class Far(Weft):
    """The nodes on hosts of their own, over TCP."""
    slow, fast = Star(5, LINK_BITS), Star(2)  # one of each for all sides
    def finish(self):
        self.slow.close()
        self.fast.close()

    def spread(self, group, count, argv):
        hosts = self.fast if group in FAR else self.slow
        hosts.open()
        env = {"WEFT_TRANSPORT": "ofi", "WEFT_SIZE": str(count), "WEFT_COORD": f"{hosts.addresses[0]}:{free_port()}", "BENCH_FILE": str(os.getpid())}
        before = hosts.sent(0)
        out = together([start(hosts.on(rank, argv), self.context.cores_of(rank) if group in FAR else None, {**env, "WEFT_RANK": str(rank)})
                        for rank in range(count)], 240)
        return "".join(out), hosts.sent(0) - before

    def measure(self, group, scale):
        if group not in (*FAR, "hosts"):
            return {}
        name, count, size, iterations, warmup = TESTS[group]
        out, sent = self.spread(group, count, [self.program, f"{name}:{size}:{scaled(iterations, scale, 1)}:{warmup}"])
        return {**values(out, lambda line: group), **({"sent": sent / size} if group == "hosts" else {})}


class OneHost(Far):
    peer = "one host"

    def measure(self, group, scale):
        if group != "hosts":
            return {}
        name, _, size, iterations, warmup = TESTS[group]
        out, sent = self.spread(group, 2, [self.program, f"{name}:{size}:1:{warmup}"])
        return {**values(out, lambda line: group), "sent": sent / size}


class Puts(Far):
    """Puts of the size and the number under way that weft topo uses, in a pool of the same hosts."""
    peer = "topo"
    test = "put_bw"

    def __init__(self, context):
        super().__init__(context)
        self.puts = context.program("bench_fabric")

    def measure(self, group, scale):
        if group not in FAR:
            return {}
        out, _ = self.spread(group, 2, [self.puts, f"{self.test}:{TOPO_BLOCK}:{scaled(4000, scale, 10)}:100"])
        return values(out, lambda line: group)


class WidePuts(Puts):
    """Puts from and to as much memory as the file has. The blocks of weft topo stay in the processor's caches, a file does not."""
    peer = "puts of 64 MiB"
    test = "put_wide_bw"
    limit = True


class WideGets(WidePuts):
    """The same by gets: whether it is the gets that keep a reader from that bandwidth."""
    peer = "gets of 64 MiB"
    test = "get_wide_bw"


class Gets(Far):
    """The same bytes by gets from the gateway's pool: what is left of that bandwidth without the file service."""
    peer = "gets like a read"
    limit = True

    def measure(self, group, scale):
        if group not in FAR:
            return {}
        out, _ = self.spread(group, 2, [self.program, f"gets:{TESTS[group][2]}:{scaled(TESTS[group][3], scale, 1)}:{TESTS[group][4]}"])
        return values(out, lambda line: group)


class System(Weft):
    """read(2) and mmap(2) of a file in the system's cache."""
    def __init__(self, context, peer, row):
        super().__init__(context)
        self.peer, self.row = peer, row

    def measure(self, group, scale):
        return self.test(group, scale, self.peer) if group == self.row else {}


class OneNode(Weft):
    peer = "one node"

    def measure(self, group, scale):
        return self.test(group, scale, count=2) if group == "cold" else {}


class Sshfs(ssh.Server):
    """Four programs that read the file by sshfs from a server of ssh on this host."""
    peer = "sshfs"

    def __init__(self, context):
        self.program = context.program(Weft.PROGRAM)

    def missing(self):
        return super().missing() or (None if shutil.which("sshfs") and os.path.exists("/dev/fuse") else "sshfs or FUSE is not installed")

    def measure(self, group, scale):
        if group != "cold":
            return {}
        from_, mount = os.path.join(self.folder, "files"), os.path.join(self.folder, "mount")
        os.makedirs(from_, exist_ok=True)
        os.makedirs(mount, exist_ok=True)
        options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", f"IdentityFile={self.folder}/user",
                   "cache=yes", "kernel_cache", "max_conns=4"]
        server = start(["sshfs", "-f", "-F", "/dev/null", "-p", str(self.port), *(w for o in options for w in ("-o", o)),
             f"{getpass.getuser()}@127.0.0.1:{from_}", mount])
        try:
            deadline = time.monotonic() + MOUNT_S
            while not os.path.ismount(mount):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Missing("sshfs does not mount")
                time.sleep(0.02)
            env = {"BENCH_UNDER": os.path.join(from_, "file"), "BENCH_PATH": os.path.join(mount, "file")}
            return values(run([self.program, f"mounted:{TESTS[group][2]}:1:0"], env=env), lambda line: "mounted")
        finally:
            subprocess.run(["fusermount3", "-u", "-z", mount], check=False, stderr=subprocess.DEVNULL)
            end(server)
            server.communicate()


class Nfs(nfs.Server):
    """The same by NFS from the kernel's server; and a program that reads a file of the mount again and again, which the mount caches."""
    peer = "nfs"

    def __init__(self, context):
        self.program = context.program(Weft.PROGRAM)

    def measure(self, group, scale):
        test, _, size, iterations, warmup = TESTS[group]
        self.mount()
        try:
            if test == "read":
                return values(run([self.program, f"pread:{size}:{scaled(iterations, scale, 1)}:{warmup}"], env={"TMPDIR": self.mounted}), lambda line: "read")
            env = {"BENCH_UNDER": os.path.join(self.served, "file"), "BENCH_PATH": os.path.join(self.mounted, "file")}
            return values(run([self.program, f"mounted:{size}:1:0"], env=env), lambda line: "mounted")
        finally:
            self.unmount()


class Get(Weft):
    """weft_get() of as many bytes: what the transport can do."""
    peer = "weft_get"
    limit = True

    def measure(self, group, scale):
        return self.test(group, scale, "get") if group == "read" else {}


def sides(context):
    system, one, get = System(context, "pread", "read"), OneNode(context), Get(context)
    if nfs.inside():
        return [Weft(context), system, one, Nfs(context), get]
    return [Weft(context), Far(context), OneHost(context), Puts(context), WidePuts(context), WideGets(context), Gets(context), system, System(context, "mmap", "map"), one, Sshfs(context), get]
