# SPDX-License-Identifier: MIT
"""Part of the suite services: `weft cast` beside programs that copy files. All receivers are folders of this host, on its disk or in its memory;
over rc they are nodes of a softverbs switch, with a folder each in this host's memory."""
import os
import shutil
import subprocess
import tempfile
import time

from rig import Missing, Row, Side, ask, end, free_port, scaled, start, wait_listening
from suites.ssh import Server

BYTES = int(os.environ.get("BENCH_CAST_BYTES", 1 << 30))  # the issue's: 4294967296
FILES, FILE_BYTES = 10000, 4096
MEMORY = "/dev/shm"
# group: (receivers, where)
GROUPS = {**{f"cast {n}": (n, "disk") for n in (1, 2, 3)}, **{f"cast {n} memory": (n, "memory") for n in (1, 2, 3)}, "cast files": (1, "files")}
OVER_RC = {f"cast {n} rc": (n, "memory, rc") for n in (1, 3)}
IN_MEMORY = ("memory", "memory, rc")
TIMEOUT = 600


def rows(context):
    scale = 0.1 if context.quick else 1
    size = scaled(BYTES, scale) >> 20

    def name(n, where):
        return f"a file of {size} MiB to {n} {'folder' if n == 1 else 'folders'} {'on one disk' if where == 'disk' else 'in memory'}"
    return [*(Row(group, name(n, where), "MB/s", "higher", {1: 0.9, 3: 5}.get(n), ["cp" if n == 1 else "rsync daemon"])
              for group, (n, where) in GROUPS.items() if where != "files"),
            *(Row(f"3 to 1, {where}", f"the time to 3 folders by the time to 1, {where}", "times", "lower", 1.15, [One.peer])
              for where in ("disk", "memory")),
            Row("cast 1 rc", f"a file of {size} MiB to 1 folder in memory, by RDMA (softverbs)", "MB/s", "higher", 0.9, ["cp or link"]),
            Row("cast 3 rc", f"a file of {size} MiB to 3 folders in memory, by RDMA (softverbs)", "MB/s", "higher"),
            Row("3 to 1, memory, rc", "the time to 3 folders by the time to 1, by RDMA (softverbs)", "times", "lower", 1.15, [One.peer]),
            Row("cast files", f"{scaled(FILES, scale):,} files of 4 KiB to one folder on the disk", "s", "lower", 1, ["rsync daemon", "tar, ssh"])]


class Place:
    """A folder with a source and room for the copies, for one group."""

    def __init__(self, group, scale):
        self.receivers, self.where = {**GROUPS, **OVER_RC}[group]
        if self.where in IN_MEMORY and not os.access(MEMORY, os.W_OK):
            raise Missing(f"{MEMORY} is not there")
        self.top = tempfile.mkdtemp(prefix="weft-bench-", dir=MEMORY if self.where in IN_MEMORY else None)
        self.source = os.path.join(self.top, "source")
        self.bytes = scaled(BYTES, scale, 1 << 20)
        needed, free = self.bytes * (self.receivers + 1), shutil.disk_usage(self.top).free
        if self.where != "files" and needed > free * 0.9:
            self.remove()
            raise Missing(f"{needed >> 20} MiB are needed and {free >> 20} MiB are free in {os.path.dirname(self.top)}; BENCH_CAST_BYTES sets the size")
        if self.where == "files":
            for i in range(scaled(FILES, scale)):
                if i % 100 == 0:
                    os.makedirs(os.path.join(self.source, str(i // 100)))
                with open(os.path.join(self.source, str(i // 100), str(i)), "wb") as f:
                    f.write(os.urandom(FILE_BYTES))
        else:
            with open(self.source, "wb") as f:
                for at in range(0, self.bytes, 1 << 20):
                    f.write(os.urandom(min(1 << 20, self.bytes - at)))
        for i in range(self.receivers):
            os.mkdir(self.to(i))
        os.sync()

    def to(self, i):
        return os.path.join(self.top, f"copy-{i + 1}")

    def remove(self):
        shutil.rmtree(self.top, ignore_errors=True)


def each(commands, env=None, sync=True):
    """Run these commands at once, and sync the disks. A command is a list of programs in a pipeline. Returns the seconds."""
    running = []
    began = time.monotonic()
    try:
        for command in commands:
            before = subprocess.DEVNULL
            for k, argv in enumerate(command):
                last = k + 1 == len(command)
                p = subprocess.Popen(argv, env=env, stdin=before, stdout=subprocess.DEVNULL if last else subprocess.PIPE, stderr=subprocess.PIPE)
                if before != subprocess.DEVNULL:
                    before.close()
                before = p.stdout
                running.append(p)
        for p in running:
            try:
                said = p.communicate(timeout=TIMEOUT)[1] if p is running[-1] or not p.stdout else (p.wait(TIMEOUT), p.stderr.read())[1]
            except subprocess.TimeoutExpired:
                raise Missing(f"'{os.path.basename(p.args[0])}' did not end within {TIMEOUT} s") from None
            if p.returncode:
                lines = said.decode(errors="replace").strip().splitlines()[-1:]
                raise Missing(f"'{os.path.basename(p.args[0])}' ended with {p.returncode}: {''.join(lines)[:200]}")
    finally:
        for p in running:
            if p.poll() is None:
                p.kill()
                p.wait()
            for stream in (p.stdout, p.stderr):
                if stream:
                    stream.close()
    if sync:
        os.sync()
    return time.monotonic() - began


class Copier(Side):
    """Copies to all receivers; commands(place): what to run."""

    def __init__(self, peer, program, limit=False):
        self.peer, self.program, self.limit = peer, program, limit
        self.seconds = {}

    def missing(self):
        return None if shutil.which(self.program) else f"{self.program} is not installed"

    def commands(self, place):
        raise NotImplementedError

    def measure(self, group, scale):
        return measure(self, group, scale) if group in GROUPS else {}


def measure(side, group, scale, env=None):
    place = Place(group, scale)
    try:
        seconds = each(side.commands(place), env, place.where not in IN_MEMORY)
        for i in range(place.receivers):
            if not os.listdir(place.to(i)):
                raise Missing(f"{side.peer} ended well and copied nothing")
    finally:
        place.remove()
    if place.where == "files":
        return {group: seconds}
    got = {group: place.bytes / 1e6 / seconds}
    side.seconds[place.receivers, place.where] = seconds
    if place.receivers == 3 and (1, place.where) in side.seconds:
        got[f"3 to 1, {place.where}"] = seconds / side.seconds[1, place.where]
    return got


class Cp(Copier):
    """One process for each receiver: the limit of the disk or of the memory."""

    def __init__(self):
        super().__init__("cp", "cp", limit=True)

    def commands(self, place):
        return [[["cp", "-r", place.source, place.to(i)]] for i in range(place.receivers)]


class One(Side):
    """What a chain without a limit would reach."""
    peer = "the time to 1"

    def measure(self, group, scale):
        receivers, where = {**GROUPS, **OVER_RC}.get(group, (0, ""))
        return {f"3 to 1, {where}": 1.0} if receivers == 3 else {}


class Standing:
    """A standing cluster, until close(). `env`: the environment of its commands. `why`: not None if it did not start."""

    def __init__(self, weft, words):
        self.weft, self.folder = weft, tempfile.mkdtemp(prefix="weft-bench-")
        self.env = {**os.environ, "XDG_RUNTIME_DIR": self.folder}
        got = subprocess.run([weft, "up", *words], env=self.env, stderr=subprocess.PIPE, check=False)
        self.why = f"weft up failed: {got.stderr.decode(errors='replace').strip()[-200:]}" if got.returncode else None

    def close(self):
        if not self.why:
            subprocess.run([self.weft, "down"], env=self.env, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def cast(place, weft):
    hosts = ",".join(str(n + 1) for n in range(place.receivers))
    return [[[weft, "cast", place.source, f"{hosts}:{place.top}/copy-{{node}}/"]]]


def cast_over(side, group, scale, words):
    """A cast on a cluster of its own: on softverbs idle nodes need some processor time, too, which other groups must not lose."""
    cluster = Standing(side.weft, words)
    try:
        if cluster.why:
            raise Missing(cluster.why)
        return measure(side, group, scale, cluster.env)
    finally:
        cluster.close()


class Shm(Side):
    """The same cast by shared memory, beside RDMA."""
    peer = "weft, shm"

    def __init__(self, context):
        self.weft = os.path.join(context.build, "src", "cli", "weft")
        self.seconds = {}

    def commands(self, place):
        return cast(place, self.weft)

    def measure(self, group, scale):
        return cast_over(self, group, scale, ["-n", "4"]) if group in OVER_RC else {}


class CpOrLink(Cp):
    """What one receiver of `cast` over rc can reach at the most: what cp writes into memory, or what perftest writes to another host of the same
    kind, whichever is less."""
    SIZE, COUNT = 1 << 20, 2000

    def __init__(self, context):
        super().__init__()
        self.peer, self.softverbs = "cp or link", os.path.join(context.build, "softverbs", "cli", "softverbs")

    def missing(self):
        return super().missing() or (None if shutil.which("ib_write_bw") else "perftest is not installed (Debian: perftest)")

    def measure(self, group, scale):
        if group not in OVER_RC:
            return {}
        return {group: min(measure(self, group, scale)[group], self.link(scale))}

    def link(self, scale):
        with tempfile.TemporaryDirectory(prefix="weft-bench-", dir=MEMORY) as folder:
            def on(host, port, *more):
                return start([self.softverbs, "run", "--fabric", "bench", "--host", str(host), "--", "ib_write_bw", "-F", "-N", "-s", str(self.SIZE),
                              "-n", str(scaled(self.COUNT, scale, 200)), "-p", str(port), *more], env={"SOFTVERBS_DIR": folder})
            out = ask(lambda port: on(1, port), lambda port: on(0, port, "127.0.0.1"), 120, 30)
        for line in out.splitlines():
            fields = line.split()
            if len(fields) > 4 and fields[0] == str(self.SIZE):
                return float(fields[4]) * self.SIZE  # millions of messages a second
        raise Missing("ib_write_bw's output is not understood")


class Rsync(Copier):
    """A daemon of its own, without compression and deltas, and a connection for each receiver."""

    def __init__(self):
        super().__init__("rsync daemon", "rsync")
        self.server = None

    def prepare(self):
        self.port, self.folder = free_port(), tempfile.mkdtemp(prefix="weft-bench-")
        config = os.path.join(self.folder, "rsyncd.conf")
        user = "uid = 0\ngid = 0\n" if os.getuid() == 0 else ""
        with open(config, "w", encoding="utf-8") as f:
            f.write(f"use chroot = no\nlog file = /dev/null\n{user}[all]\npath = /\nread only = no\n")
        self.server = start(["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={self.port}", "--address=127.0.0.1"])
        wait_listening(self.port, self.server)

    def commands(self, place):
        return [[["rsync", "-a", "--whole-file", "--inplace", place.source, f"rsync://127.0.0.1:{self.port}/all{place.to(i)}/"]]
                for i in range(place.receivers)]

    def finish(self):
        if self.server:
            end(self.server)
            self.server.communicate()
            shutil.rmtree(self.folder, ignore_errors=True)


class Udpcast(Copier):
    """One sender and a receiver each, over the loopback interface."""

    def __init__(self):
        super().__init__("udpcast", "udp-sender")

    def measure(self, group, scale):
        return measure(self, group, scale) if group in GROUPS and GROUPS[group][1] != "files" else {}

    def commands(self, place):
        if place.receivers > 1:
            raise Missing("its receivers need hosts of their own")
        port = ["--interface", "lo", "--portbase", str(free_port() // 2 * 2)]
        receivers = [[["udp-receiver", "--nokbd", "--file", os.path.join(place.to(i), "file"), *port]] for i in range(place.receivers)]
        return [*receivers, [["udp-sender", "--nokbd", "--file", place.source, "--min-receivers", str(place.receivers), "--max-wait", "10",
                              *port]]]


class Scp(Server):
    peer = "scp"

    def __init__(self):
        self.seconds = {}

    def missing(self):
        return super().missing() or (None if shutil.which("scp") else "scp is not installed")

    def commands(self, place):
        options = ["-P" if o == "-p" else o for o in self.command[1:-1]]  # the port's option
        return [[["scp", "-q", "-r", *options, place.source, f"{self.command[-1]}:{place.to(i)}/"]] for i in range(place.receivers)]

    def measure(self, group, scale):
        return measure(self, group, scale) if group in GROUPS else {}


class TarSsh(Scp):
    peer = "tar, ssh"

    def missing(self):
        return Server.missing(self) or (None if shutil.which("tar") else "tar is not installed")

    def commands(self, place):
        return [[["tar", "-C", place.top, "-cf", "-", "source"], [*self.command, f"tar -C {place.to(i)} -xf -"]] for i in range(place.receivers)]


def sides(context):
    return [Cp(), One(), Rsync(), Scp(), TarSsh(), Udpcast(), Shm(context), CpOrLink(context)]
