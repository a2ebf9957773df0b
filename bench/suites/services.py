# SPDX-License-Identifier: MIT
"""Services of nodes beside what a program does without them, and `weft exec` beside ssh."""
import os
import shutil
import subprocess
import time

from rig import Missing, Ours, Row, Side, end, nodes, run, scaled, start, values
from suites import copies
from suites.ssh import Server

NAME = "services"
TITLE = "programs that a node starts for others"

# group: (test, nodes, iterations, warm-up)
EXEC, EXECS = "exec", 200  # whole commands, one after the other
CASTS = [*copies.GROUPS, *copies.OVER_RC]
TESTS = {"spawn own": ("spawn", 1, 500, 50), "spawn": ("spawn", 2, 500, 50), "1,000 spawns": ("many", 2, 1000, 10)}


def rows(context):
    return [Row("spawn own", "start `true` at the own node, and its end", "us", "lower", 1.15),
            Row("spawn", "the same at another node of the host", "us", "lower", 1.15),
            Row("1,000 spawns", "1,000 of them at once", "programs/s", "higher"),
            Row("exec", "a whole command that runs `true`, beside ssh", "ms", "lower", 1 / 50, ["ssh"]),
            Row("exec again", "the same beside ssh with a connection that is open", "ms", "lower", 1 / 5, ["ssh, ControlMaster"]),
            *copies.rows(context)]


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
        if group in copies.OVER_RC:
            return copies.cast_over(self, group, scale, ["--softverbs", "switch:4"])
        if self.cluster.why:
            raise Missing(self.cluster.why)
        return copies.measure(self, group, scale, self.cluster.env)

    def commands(self, place):
        return copies.cast(place, self.weft)

    def prepare(self):
        """A standing cluster of four nodes."""
        self.seconds = {}
        self.weft = os.path.join(self.context.build, "src", "cli", "weft")
        self.cluster = copies.Standing(self.weft, ["-n", "4"])

    def finish(self):
        self.cluster.close()

    def exec(self, scale):
        if self.cluster.why:
            raise Missing(self.cluster.why)
        value = each([self.weft, "exec", "--on", "1", "--", "true"], scale, self.cluster.env)
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


class Many(Side):
    """A program that starts many commands, as fast as it can."""
    command = []

    def missing(self):
        return None if shutil.which(self.command[0]) else f"{self.command[0]} is not installed (Debian: {self.command[0]})"

    def measure(self, group, scale):
        if group != "1,000 spawns":
            return {}
        count = scaled(TESTS[group][2], scale, 10)
        began = time.monotonic()
        done = subprocess.run(self.words(count), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            raise Missing(f"'{self.command[0]}' ended with {done.returncode}: {done.stderr[-200:].decode(errors='replace')}")
        return {group: count / (time.monotonic() - began)}

    def words(self, count):
        raise NotImplementedError


class Parallel(Many):
    """With its start, as for a user; as many commands at once as this machine has processors, which is its default."""
    peer, command = "GNU parallel", ["parallel", "--will-cite", "-j", str(os.cpu_count())]

    def words(self, count):
        return [*self.command, "true", ":::", *map(str, range(count))]


class Pdsh(Many):
    """With its start; `-R exec` runs the commands here, without a connection, 32 at once, which is its default."""
    peer, command = "pdsh", ["pdsh", "-R", "exec", "-f", "32"]

    def words(self, count):
        return [*self.command, "-w", f"h[1-{count}]", "true"]


class Ssh(Server):
    """ssh to this host, to a server of its own; a connection for each command."""
    peer, row = "ssh", "exec"
    share = 0.2  # of the commands: one takes long

    def measure(self, group, scale):
        if group != EXEC:
            return {}
        return {self.row: each([*self.command, "true"], scale * self.share)}


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


def sides(context):
    return [Weft(context), Posix(context), Parallel(), Pdsh(), Ssh(), SshMaster(), *copies.sides(context)]
