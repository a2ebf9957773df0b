#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs without rights: an ordinary user under each of Yama's scopes, two users, namespaces.

Usage: test_rights.py SOFTVERBS. If root runs it, the programs run as user 1000. Yama's scopes are set only in a virtual
machine (VM_INDEX is set: test_yama.py).
"""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SOFTVERBS = os.path.abspath(sys.argv.pop(1))
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
USER = 1000
PATIENCE = 100 * max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))  # seconds, for software emulation on a busy machine
OWN_SPACE = ("unshare", "-Urpf", "--mount-proc")


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def scope():
    try:
        with open(SCOPE, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def as_user(uid):
    """The arguments by which subprocess runs a program as that user; none if this process is not root."""
    return {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 and uid else {}


class Result:
    def __init__(self, process):
        out, err = process.communicate(timeout=PATIENCE)
        self.code, self.text = process.returncode, out + err


class Rights(unittest.TestCase):
    uid = USER if os.geteuid() == 0 else 0

    def setUp(self):
        self.files = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(self.files.cleanup)
        self.environment = {**os.environ, "SOFTVERBS_DIR": self.directory(self.uid), "LC_ALL": "C"}
        # Debian's programs leave memory behind; that is not what a sanitizer's build is to find here.
        self.environment["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))
        for name in ("SOFTVERBS_FABRIC", "SOFTVERBS_HOST", "SOFTVERBS_LOG"):
            self.environment.pop(name, None)
        self.running = []
        self.addCleanup(self.end)
        os.chmod(self.files.name, 0o711)
        if subprocess.run([SOFTVERBS, "--version"], **as_user(self.uid), capture_output=True, check=False).returncode:
            self.skipTest(f"user {self.uid} cannot reach {SOFTVERBS}")

    def directory(self, uid):
        path = os.path.join(self.files.name, str(uid))
        os.makedirs(path, mode=0o700, exist_ok=True)
        if uid:
            os.chown(path, uid, uid)
        return path

    def end(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, host, *command, uid=None, before=(), **more):
        process = subprocess.Popen([*before, SOFTVERBS, "run", "--host", str(host), "--", *command], env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   **as_user(self.uid if uid is None else uid), **more)
        self.running.append(process)
        return process

    def listens(self, number):
        with open("/proc/net/tcp", encoding="ascii") as v4, open("/proc/net/tcp6", encoding="ascii") as v6:
            return any(f":{int(number):04X}" in line.split()[1] and line.split()[3] == "0A"
                       for line in [*v4.readlines()[1:], *v6.readlines()[1:]])

    def begin(self, *command, **more):
        """Server on host 0 and client on host 1, both running."""
        at = port()
        server = self.start(0, *command, "-p", at, **more)
        limit = time.monotonic() + PATIENCE
        while not self.listens(at) and server.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        return server, self.start(1, *command, "-p", at, "localhost", **more)

    def pair(self, *command, **more):
        return [Result(process) for process in self.begin(*command, **more)]

    def works(self, *command, says, **more):
        for result in self.pair(*command, **more):
            self.assertEqual(result.code, 0, result.text)
            self.assertIn(says, result.text)

    def empty(self):
        """Checks that nothing of the dead processes is left on the fabric, after another process has looked for them."""
        listing = self.listing()
        self.assertIn("default", listing)
        self.assertNotRegex(listing, "ib_write_bw|pingpong")

    def everything(self):
        self.works("ibv_rc_pingpong", "-g", "1", "-n", "50", says="50 iters")
        self.works("ibv_rc_pingpong", "-g", "1", "-n", "50", "-e", says="50 iters")
        self.works("ib_write_bw", "-n", "100", says="65536      100")
        self.works("ib_send_lat", "-n", "20", "-e", says="t_typical")
        self.killed()

    def killed(self):
        """The writer gets an error when its peer dies; what the dead process has left hinders nobody."""
        server, client = self.begin("ib_write_bw", "-n", "10000000")
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and client.poll() is None:
            listed = subprocess.run([SOFTVERBS, "ls"], env=self.environment, **as_user(self.uid), capture_output=True,
                                    text=True, check=False)
            if listed.stdout.count("ib_write_bw") >= 2:
                break
            time.sleep(0.05)
        time.sleep(0.3)
        server.send_signal(signal.SIGKILL)
        result = Result(client)
        self.assertNotEqual(result.code, 0, result.text)
        self.works("ibv_rc_pingpong", "-g", "1", "-n", "20", says="20 iters")
        self.empty()

    def with_scope(self, number):
        if "VM_INDEX" not in os.environ:
            self.skipTest("only in a virtual machine")
        before = scope()
        self.addCleanup(self.set_scope, before)
        self.set_scope(number)
        self.assertEqual(scope(), number)

    def set_scope(self, number):
        with open(SCOPE, "w", encoding="ascii") as file:
            file.write(f"{number}\n")

    def test_ordinary_user(self):
        if scope() > 1:
            self.skipTest(f"ptrace_scope is {scope()} here")
        self.everything()

    def test_scope_1(self):
        self.with_scope(1)
        self.everything()

    def test_scope_2(self):
        """No data moves, and a message says why; neither process treats the other as dead."""
        self.with_scope(2)
        for result in self.pair("ib_write_bw", "-n", "5"):
            if "data cannot move" in result.text:
                self.assertIn("ptrace_scope is 2", result.text)
                self.assertIn("sysctl kernel.yama.ptrace_scope=1", result.text)
                self.assertNotEqual(result.code, 0)
                break
        else:
            self.fail("neither said that data cannot move")
        holder = self.hold()
        for _ in range(3):
            self.devinfo()
        self.assertIsNone(holder.poll())
        self.assertIn("ibv_rc_pingpong", self.listing())
        holder.kill()
        holder.communicate()
        self.devinfo()
        self.assertNotIn("ibv_rc_pingpong", self.listing())

    def listing(self):
        return subprocess.run([SOFTVERBS, "ls"], env=self.environment, **as_user(self.uid), capture_output=True, text=True,
                              check=True).stdout

    def hold(self, **more):
        """A program that has its devices open until it is ended."""
        at = port()
        process = self.start(0, "ibv_rc_pingpong", "-g", "1", "-p", at, **more)
        limit = time.monotonic() + PATIENCE
        while not self.listens(at) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        return process

    def devinfo(self, **more):
        result = Result(self.start(1, "ibv_devinfo", **more))
        self.assertEqual(result.code, 0, result.text)
        return result

    def test_two_users(self):
        """A user cannot use the fabrics of another user, and a message says so."""
        if os.geteuid() != 0:
            self.skipTest("needs root")
        self.devinfo()
        result = Result(self.start(1, "ibv_devinfo", uid=0))
        self.assertNotEqual(result.code, 0)
        self.assertIn("not shared between users", result.text)
        os.chmod(self.environment["SOFTVERBS_DIR"], 0o755)
        result = Result(self.start(1, "ibv_devinfo", uid=USER + 1))
        self.assertNotEqual(result.code, 0)
        self.assertIn("not shared between users", result.text)

    # ---- Namespaces ------------------------------------------------------------------------------------------------

    def needs_unshare(self):
        if not shutil.which("unshare") or subprocess.run([*OWN_SPACE, "true"], **as_user(self.uid), capture_output=True,
                                                         check=False).returncode:
            self.skipTest("no namespaces for ordinary users here")
        if scope() > 1:
            self.skipTest(f"ptrace_scope is {scope()} here")

    def test_inside_a_container(self):
        """Both programs are inside a container: they work as outside, although their process numbers are different."""
        self.needs_unshare()
        at = port()
        script = f"""
            '{SOFTVERBS}' run --host 0 -- ibv_rc_pingpong -g 1 -n 50 -e -p {at} &
            until '{SOFTVERBS}' run --host 1 -- ibv_rc_pingpong -g 1 -n 50 -e -p {at} localhost; do sleep 0.1; done
            wait $!"""
        result = Result(subprocess.Popen([*OWN_SPACE, "sh", "-c", script], env=self.environment, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **as_user(self.uid)))
        self.assertEqual(result.code, 0, result.text)
        self.assertEqual(result.text.count("50 iters"), 2, result.text)
        self.devinfo()  # those of before are dead, though their numbers say nothing out here

    def test_into_a_container(self):
        """One program is inside a container, one outside: the second is refused, and the first is not affected."""
        self.needs_unshare()
        for outside_first in (True, False):
            holder = self.hold(before=() if outside_first else OWN_SPACE)
            self.assertIsNone(holder.poll())
            before = OWN_SPACE if outside_first else ()
            for _ in range(2):
                result = Result(self.start(1, "ibv_devinfo", before=before))
                self.assertNotEqual(result.code, 0, result.text)
                self.assertIn("PID namespace", result.text)
                self.assertIn("--fabric", result.text)
            listed = subprocess.run([*before, SOFTVERBS, "down"], env=self.environment, **as_user(self.uid),
                                    capture_output=True, text=True, check=False)
            self.assertNotEqual(listed.returncode, 0, listed.stdout + listed.stderr)
            self.assertIsNone(holder.poll())
            # Killing unshare kills what is inside only with --kill-child: the program is its child.
            children = subprocess.run(["pgrep", "-P", str(holder.pid)], capture_output=True, text=True, check=False).stdout
            for child in children.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            holder.kill()
            holder.communicate()
            self.devinfo(before=before)

    def test_proc_of_outside(self):
        """A PID namespace that sees the /proc of another one."""
        self.needs_unshare()
        result = Result(self.start(1, "ibv_devinfo", before=("unshare", "-Urpf")))
        self.assertNotEqual(result.code, 0, result.text)
        self.assertIn("--mount-proc", result.text)

    def test_user_namespace_alone(self):
        """Both programs see the same process numbers, but only one may access the other: neither treats the other as dead."""
        self.needs_unshare()
        holder = self.hold()
        for _ in range(2):
            Result(self.start(1, "ibv_devinfo", before=("unshare", "-Ur")))
        self.assertIsNone(holder.poll())
        self.assertIn("ibv_rc_pingpong", self.listing())


if __name__ == "__main__":
    unittest.main(verbosity=2)
