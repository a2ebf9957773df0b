# SPDX-License-Identifier: MIT
"""Services of nodes beside what a program does without them, and `weft exec` beside ssh."""
import getpass
import os
import shutil
import subprocess
import tempfile
import time

from rig import Missing, Ours, Row, Side, end, free_port, nodes, run, scaled, start, values, wait_listening

NAME = "services"
TITLE = "programs that a node starts for others"

# group: (test, nodes, iterations, warm-up)
EXEC, EXECS = "exec", 200  # whole commands, one after the other
CASTS = {f"cast {n}": n for n in (1, 2, 3)}  # group: receivers
CAST_BYTES = 256 << 20
TESTS = {"spawn own": ("spawn", 1, 500, 50), "spawn": ("spawn", 2, 500, 50), "1,000 spawns": ("many", 2, 1000, 10)}


def rows(context):
    return [Row("spawn own", "start `true` at the own node, and its end", "us", "lower", 1.15),
            Row("spawn", "the same at another node of the host", "us", "lower", 1.15),
            Row("1,000 spawns", "1,000 of them at once", "programs/s", "higher"),
            Row("exec", "a whole command that runs `true`, beside ssh", "ms", "lower", 1 / 50, ["ssh"]),
            Row("exec again", "the same beside ssh with a connection that is open", "ms", "lower", 1 / 5, ["ssh, ControlMaster"]),
            *(Row(group, f"a file of 256 MiB to {n} host{'s'[:n > 1]} whose disks are one", "MB/s", "higher", 5 if n == 3 else None, ["rsync"])
              for group, n in CASTS.items())]


def groups(context):
    return [*TESTS, EXEC, *CASTS]


class Weft(Ours):
    PROGRAM = "bench_services"

    def test(self, group, scale, test=None):
        own, count, iterations, warmup = TESTS[group]
        word = f"{test or own}:0:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}"
        if test:
            return values(run([self.program, word]), lambda line: group)
        return values(nodes(count, [self.program, word]), lambda line: group)

    def measure(self, group, scale):
        return self.exec(scale) if group == EXEC else self.cast(group, scale) if group in CASTS else self.test(group, scale)

    def cast(self, group, scale):
        if not self.is_up:
            raise Missing("weft up failed")
        hosts = ",".join(str(n + 1) for n in range(CASTS[group]))
        return copy(group, scale, lambda source, folder, n: [[self.weft, "cast", source, f"{hosts}:{folder}/{{node}}/"]], self.env)

    def prepare(self):
        """A standing cluster of four nodes."""
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        self.env = {**os.environ, "XDG_RUNTIME_DIR": self.folder}
        self.weft = os.path.join(self.context.build, "src", "cli", "weft")
        self.is_up = subprocess.run([self.weft, "up", "-n", "4"], env=self.env, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def finish(self):
        if self.is_up:
            subprocess.run([self.weft, "down"], env=self.env, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def exec(self, scale):
        if not self.is_up:
            raise Missing("weft up failed")
        value = each([self.weft, "exec", "--on", "1", "--", "true"], scale, self.env)
        return {"exec": value, "exec again": value}


class Posix(Ours):
    """posix_spawn() and waitpid(), one after the other."""
    peer = "posix_spawn"
    PROGRAM = Weft.PROGRAM
    test = Weft.test

    def measure(self, group, scale):
        if group in CASTS:
            return {}
        if group == EXEC:
            value = each(["/bin/true"], scale)  # what a whole command costs at the least
            return {"exec": value, "exec again": value}
        got = self.test(group, scale, "posix")
        if group == "1,000 spawns":
            return {group: 1e6 / got[group]}
        return got


class Ssh(Side):
    """ssh to this host, to a server of its own; a connection for each command."""
    peer, row, options = "ssh", "exec", []

    def missing(self):
        self.sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        return None if self.sshd and shutil.which("ssh") and shutil.which("ssh-keygen") else "ssh or sshd is not installed"

    def prepare(self):
        self.server, self.port = None, free_port()
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(self.folder, key)], check=True)
        self.made = os.getuid() == 0 and not os.path.exists("/run/sshd")
        if self.made:
            os.mkdir("/run/sshd", 0o755)  # without it root's sshd does not start
        self.server = start([self.sshd, "-D", "-e", "-f", "/dev/null", "-p", str(self.port), "-h", os.path.join(self.folder, "host"),
                             *(word for o in ("ListenAddress=127.0.0.1", "UsePAM=no", "StrictModes=no", "PidFile=none",
                                              f"AuthorizedKeysFile={self.folder}/user.pub") for word in ("-o", o))])
        wait_listening(self.port, self.server)
        self.command = ["ssh", "-F", "/dev/null", "-p", str(self.port), "-i", os.path.join(self.folder, "user"), "-oBatchMode=yes",
                        "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR", *self.options,
                        f"{getpass.getuser()}@127.0.0.1"]

    def measure(self, group, scale):
        if group != EXEC:
            return {}
        return {self.row: each([*self.command, "true"], scale * self.share)}

    share = 0.2  # of the commands: one takes long

    def finish(self):
        if self.server:
            end(self.server)
            self.server.communicate()
        if self.made:
            os.rmdir("/run/sshd")
        shutil.rmtree(self.folder, ignore_errors=True)


class SshMaster(Ssh):
    """The same by a connection that is open already."""
    peer, row, share = "ssh, ControlMaster", "exec again", 0.5
    master = None

    def prepare(self):
        super().prepare()
        master = os.path.join(self.folder, "master")
        self.command[-1:-1] = ["-oControlPath=" + master]
        self.master = start([*self.command[:-1], "-oControlMaster=yes", "-N", self.command[-1]])
        for _ in range(500):
            if os.path.exists(master):
                return
            time.sleep(0.02)

    def finish(self):
        if self.master:
            end(self.master)
            self.master.communicate()
        super().finish()


def each(argv, scale, env=None):
    """Milliseconds of a command, one after the other."""
    count = scaled(EXECS, scale, 5)
    began = time.monotonic()
    for _ in range(count):
        if (status := subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, check=False).returncode):
            raise Missing(f"'{os.path.basename(argv[0])}' ended with {status}")
    return (time.monotonic() - began) / count * 1e3


def copy(group, scale, commands, env=None):
    """MB/s that each receiver gets: the commands of `commands(source, folder, receiver's number)`, then sync."""
    size = scaled(CAST_BYTES, scale, 1 << 20)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        source = os.path.join(folder, "source")
        with open(source, "wb") as f:
            for at in range(0, size, 1 << 20):
                f.write(os.urandom(min(1 << 20, size - at)))
        os.sync()
        began = time.monotonic()
        for argv in commands(source, folder, CASTS[group]):
            if (status := subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode):
                raise Missing(f"'{os.path.basename(argv[0])}' ended with {status}")
        os.sync()
        return {group: size / 1e6 / (time.monotonic() - began)}


class Copier(Side):
    """A program that copies to one place at a time, without a network."""

    def __init__(self, peer, argv, limit=False):
        self.peer, self.argv, self.limit = peer, argv, limit

    def missing(self):
        return None if shutil.which(self.argv[0]) else f"{self.argv[0]} is not installed"

    def measure(self, group, scale):
        if group not in CASTS:
            return {}
        return copy(group, scale, lambda source, folder, n: [[*self.argv, source, f"{folder}/copy {i}"] for i in range(n)])


def sides(context):
    return [Weft(context), Posix(context), Ssh(), SshMaster(), Copier("cp", ["cp"], limit=True),
            Copier("rsync", ["rsync", "--whole-file", "--inplace"])]
