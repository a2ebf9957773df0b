# SPDX-License-Identifier: MIT
"""Files that a gateway has read for other nodes of its host, beside what a program reads by itself."""
import getpass
import os
import shutil
import subprocess
import time

from rig import Missing, Ours, Row, end, nodes, run, scaled, start, values
from suites import ssh

NAME = "file"
TITLE = "files of a node, cached for others"

MIB = 1 << 20
MOUNT_S = 20
# group: (test, nodes, bytes, iterations, warm-up). After the warm-up all pieces are in huge pages.
TESTS = {"read": ("read", 2, 64 * MIB, 60, 150), "map": ("map", 2, 64 * MIB, 60, 150), "cold": ("cold", 5, 256 * MIB, 1, 0)}


def rows(context):
    return [Row("read", "read a cached file of another node of the host", "GB/s", "higher", 1, ["pread"]),
            Row("map", "map it and sum its words", "GB/s", "higher", 1, ["mmap"]),
            Row("cold", "four nodes read 256 MiB that nobody has cached, beside one node", "ms", "lower", 1.2, ["one node"]),
            Row("mounted", "four nodes read 256 MiB that nobody has cached, beside four programs below a mount", "ms", "lower", 1, ["sshfs"])]


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
        got = self.test(group, scale)
        return {**got, "mounted": got["cold"]} if group == "cold" else got


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


class Get(Weft):
    """weft_get() of as many bytes: what the transport can do."""
    peer = "weft_get"
    limit = True

    def measure(self, group, scale):
        return self.test(group, scale, "get") if group == "read" else {}


def sides(context):
    return [Weft(context), System(context, "pread", "read"), System(context, "mmap", "map"), OneNode(context), Sshfs(context), Get(context)]
