#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`weft exec` by the small command, which hands over to the whole one: both do the same, and nothing is lost between them.

Usage: test_standing_small.py PATH-OF-WEFT CLUSTER [TEST...], as test_standing.py
"""
import fcntl
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from test_standing import LIMIT, NOBODY, WEFT, Standing, Up, until  # noqa: E402

WHOLE = os.path.join(os.path.dirname(WEFT), "whole", "weft")
REQUEST, STARTED, OUT, ENDED, TAKEN, TEXT, ERROR, DONE = 1, 4, 5, 6, 7, 8, 9, 10
NOBODY_MORE = 0xffffffff


def frame(kind, node, number, payload=b""):
    return struct.pack("<IIII", kind, len(payload), node, number) + payload


def blocks(pid, number):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return any(line.startswith("SigBlk:") and int(line.split()[1], 16) >> (number - 1) & 1 for line in f)
    except OSError:
        return False


@unittest.skipUnless(os.path.exists(WHOLE), "this build has no small command")
class Both(Standing):
    def one(self, program, words, **more):
        more = {"env": self.env, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": LIMIT, **more}
        p = subprocess.run([program, "exec", *words], check=False, **more)
        return p.returncode, sorted((p.stdout or b"").splitlines(True)), sorted((p.stderr or b"").splitlines(True))

    def same(self, *words, **more):
        """What both commands do, which is the same."""
        small, whole = self.one(WEFT, words, **more), self.one(WHOLE, words, **more)
        self.assertEqual(small, whole, words)
        return small


class Small(Up, Both):
    def alone(self):
        """A copy of the small command, without the whole one beside it."""
        folder = tempfile.mkdtemp(dir=self.tmp.name)
        return shutil.copy(WEFT, os.path.join(folder, "weft"))

    def test_same(self):
        sh = ["--", "sh", "-c"]
        self.assertEqual(self.same("--on", "1", "--", "true"), (0, [], []))
        self.assertEqual(self.same("--on=1", "echo", "x")[:2], (0, [b"x\n"]))
        self.assertEqual(self.same("--on", "0,,2,", "--", "echo", "x")[:2], (0, [b"x\n"] * 2))
        self.assertEqual(self.same(*sh, "echo a; echo b >&2; exit 3"), (3, [b"a\n"] * 3, [b"b\n"] * 3))
        self.assertEqual(self.same("--on", "1", *sh, "printf a; printf b >&2; kill -9 $$"), (128 + 9, [b"a"], [b"b"]))
        self.assertEqual(self.same("--on", "2", *sh, "head -c 70000 /dev/zero")[1], [bytes(70_000)])
        for words in (["printf", "a"], ["--on", "all", "printf", "a\nb"], ["--on", "1", "/nonexistent/program"], ["--", "no-such-program"],
                      ["--on", "1", "/etc/passwd"], ["--cwd", "/", "--on", "1", "pwd"], ["--cwd=/nonexistent", "true"], ["--on", "elsewhere", "true"],
                      ["--on", "", "true"], ["--on", ",", "true"], ["--on"], ["--on", "1"], ["--on", "1", "--"], [""], ["-"], ["--", ""], ["-x"],
                      ["--env", "A=1 = 2", "--env=B", "--on", "1", *sh, "echo $A; exit 7"], ["--env", "=x", "true"], ["--env", "", "true"],
                      ["--onn", "1", "true"], ["--clust", "none", "true"], ["--cluster", "none", "true"], ["--cluster", "", "true"],
                      ["--cluster", "../x", "true"], ["--cluster", "x" * 33, "true"], ["--timeout", "10", "--on", "1", "echo", "t"], ["-h"], ["--help"],
                      ["-t", "--on", "1", "echo", "t"], ["--on", "1", "echo", *map(str, range(400))],
                      ["--on", "1", "echo", "x" * 9000], ["--on", "1", "echo", "x" * 8100], ["--stdin", "/etc/passwd", "--on", "1", "cat"],
                      ["--on", "1", *sh, "echo a; sleep 0.3; printf b; sleep 0.3; echo c; exit 9"], [*sh, "echo a; sleep 0.3; printf b; exit 9"],
                      ["--on", "0,1", *sh, "sleep 0.003; echo 1; sleep 0.003; echo 2; exit 4"], ["--on", "1", *sh, "exit 300"]):
            self.same(*words)

    def test_places(self):
        """Both look for the cluster's socket at the same place, and trust the same folders."""
        other = os.path.join(self.tmp.name, "others")
        os.mkdir(other, 0o700)
        os.symlink(self.path(""), os.path.join(other, "link"))
        os.makedirs(os.path.join(other, "weft", "default"), 0o700)
        for more in ({"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "."}, {"XDG_RUNTIME_DIR": other}, {"XDG_RUNTIME_DIR": other + "/none"},
                     {"XDG_RUNTIME_DIR": "/" + "x" * 100}, {"XDG_RUNTIME_DIR": self.tmp.name + "/" * 20}, {"WEFT_CLUSTER": ""}, {"WEFT_CLUSTER": "none"},
                     {"WEFT_CLUSTER": "default"}):
            self.same("--on", "1", "echo", "x", env={**self.env, **more})
        for folder in (self.tmp.name, self.path(""), os.path.dirname(self.path("").rstrip("/"))):
            before = os.stat(folder).st_mode & 0o7777
            for mode in (0o777, 0o755, 0o750, 0o700):
                os.chmod(folder, mode)
                self.same("--on", "1", "echo", "x")
            os.chmod(folder, before)

    def test_alone(self):
        """Without the whole command, which a job may need before its end, the small one says so, and starts nothing."""
        weft = self.alone()
        mark = os.path.join(os.path.dirname(weft), "started")
        for words in (["touch", mark], ["sh", "-c", f"touch {mark}; sleep 630"]):
            p = self.one(weft, ["--on", "1", "--", *words])
            self.assertEqual((p[0], p[1]), (255, []))
            self.assertRegex(p[2][0], rb"\Aweft: \S+, which has all commands, cannot be executed: No such file; install weft again\n\Z")
        self.assertFalse(os.path.exists(mark) or self.sleepers("630"))
        self.assertEqual(self.one(weft, ["--on", "1", "--", "true"], env={**self.env, "LD_PRELOAD": "/nonexistent.so"})[0], 255)
        p = subprocess.run([weft, "status"], env=self.env, capture_output=True, timeout=LIMIT, check=False)
        self.assertEqual((p.returncode, b"install weft again" in p.stderr), (1, True))

    def test_another_user(self):
        """A whole command that another user has put beside a copy is not executed."""
        if os.getuid() != 0:
            self.skipTest("needs root")
        weft = self.alone()
        folder = os.path.join(os.path.dirname(weft), "whole")
        os.mkdir(folder)
        shutil.copy(shutil.which("true"), os.path.join(folder, "weft"))
        for what in (folder, os.path.join(folder, "weft")):
            os.chown(what, NOBODY, NOBODY)
            p = subprocess.run([weft, "status"], env=self.env, capture_output=True, timeout=LIMIT, check=False)
            self.assertEqual((p.returncode, b"another user may have put it there" in p.stderr), (1, True), p.stderr)
            os.chown(what, 0, 0)
        self.assertEqual(subprocess.run([weft, "status"], env=self.env, timeout=LIMIT, check=False).returncode, 0)

    def test_signals(self):
        """A signal that comes while the small command waits reaches the program, and does not end the command."""
        for k in range(20):
            p = self.start("exec", "--on", "1", "--", "sh", "-c", "trap 'exit 5' INT; sleep 631 & wait")
            until("it holds back or catches signals", lambda p=p: blocks(p.pid, signal.SIGINT) or processes.catches(p.pid, signal.SIGINT))
            time.sleep(k / 2000)
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=LIMIT)
            self.assertIn(p.returncode, (5, 128 + signal.SIGINT), (out, err))  # the latter: before the shell has set its trap
        until("all have ended", lambda: not self.sleepers("631"))
        held = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # noqa: E731
        self.assertEqual(self.same("--on", "1", "echo", "x", preexec_fn=held)[:2], (0, [b"x\n"]))

    def test_outputs(self):
        """Outputs that are closed, full, or not read."""
        words = ["--on", "1", "--", "sh", "-c", "echo out; echo err >&2"]
        for target in ("/dev/null", "/dev/full"):
            with open(target, "wb") as f:
                self.same(*words, stdout=f)
                self.same(*words, stderr=f)
        for fd in range(3):
            self.same(*words, preexec_fn=lambda fd=fd: os.close(fd))

        def limited():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with open(os.path.join(self.tmp.name, "out"), "wb") as f:
            self.assertEqual(self.same(*words, stdout=f, preexec_fn=limited)[0], 255)
        nobody, out = os.pipe()
        os.close(nobody)
        self.assertEqual(self.same(*words, stdout=out)[0], 128 + signal.SIGPIPE)
        os.close(out)
        reads, out = os.pipe()
        os.write(out, bytes(fcntl.fcntl(out, fcntl.F_GETPIPE_SZ)))
        p = subprocess.Popen([WEFT, "exec", *words], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
        self.assertEqual(p.stderr.readline(), b"err\n")  # the rest waits for a reader
        for number in (signal.SIGINT, signal.SIGTERM):
            self.assertIsNone(p.poll())
            until("it catches the signal", lambda: processes.catches(p.pid, signal.SIGINT))
            p.send_signal(number)
            until("it has handled it", lambda number=number: p.poll() is not None or not processes.pending(p.pid, number))
        self.assertEqual(p.wait(LIMIT), -signal.SIGTERM)
        p.stderr.close()
        os.close(out)
        os.close(reads)

    def test_long_environment(self):
        """If the environment leaves no room for the arguments of the handing over, the whole command runs the job from its start."""
        words = ["--on", "1", "--", "sh", "-c", "sleep 0.3; echo x"]
        most = 128 << 10  # of a stack of 512 KiB, the kernel gives arguments and environment a quarter

        def run(pad):
            try:
                return self.one(WEFT, words, env={**self.env, "PAD": "x" * pad},
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (512 << 10, resource.getrlimit(resource.RLIMIT_STACK)[1])))
            except OSError:
                return None
        low, high = 0, most  # it starts with `low` bytes more, and not with `high`
        while high - low > 1:
            low, high = ((low + high) // 2, high) if run((low + high) // 2) else (low, (low + high) // 2)
        more = len(WHOLE) - len(WEFT) + 8
        self.assertEqual(run(low - more), (0, [b"x\n"], []))

    def test_connected(self):
        """The option by which a connection is handed over is refused to others."""
        for value, status in (("x", 2), ("3", 2), ("3:0", 2), ("3:300:0", 2), ("3:0:-1", 2), ("3:0:9999999", 2), ("3:0:0:0", 2), ("0:0:0", 2),
                              ("99:0:0", 255)):
            p = self.one(WEFT, ["--connected", value, "--", "true"])
            self.assertEqual(p[0], status)
            self.assertIn(b"leave it out", b"".join(p[2]))
        a, b = socket.socketpair()
        p = self.one(WEFT, ["--connected", f"{a.fileno()}:0:0", "--detach", "--", "true"], pass_fds=[a.fileno()])
        self.assertEqual(p[0], 2)
        a.close()
        b.close()


class Frames(Both):
    """The test is the control node, which sends what it wants."""

    def setUp(self):
        folder = os.path.join(self.tmp.name, "weft", "default")
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(os.path.dirname(folder), 0o700)
        self.listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.listener.close)
        path = os.path.join(folder, "control")
        if os.path.exists(path):
            os.unlink(path)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(LIMIT)

    def serve(self, pieces):
        with self.listener.accept()[0] as s:
            s.settimeout(LIMIT)
            s.recv(4096)
            try:
                for piece in pieces:
                    s.sendall(piece)
                    time.sleep(0.001)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
            except OSError:
                pass

    def each(self, pieces, *words):
        """What the small and the whole command do with the same frames."""
        got = []
        for program in (WEFT, WHOLE):
            node = threading.Thread(target=self.serve, args=[pieces])
            node.start()
            got.append(self.one(program, [*words, "true"]))
            node.join()
        return got

    def both(self, pieces, *words):
        got = self.each(pieces, *words)
        self.assertEqual(got[0], got[1], (pieces, words))
        return got[0]

    def test_frames(self):
        start, done = frame(STARTED, 1, 77, b"host"), frame(DONE, NOBODY_MORE, 1)
        out, ended = frame(OUT, 1, 1, b"line\n"), frame(ENDED, 1, 3)
        on = "--on", "1"
        self.assertEqual(self.both([start + out + ended + done], *on), (3, [b"line\n"], []))
        self.assertEqual(self.both([start, out, ended, done], *on), (3, [b"line\n"], []))
        self.assertEqual(self.both([start + out, ended + frame(ENDED, 1, 4), done], *on), (3, [b"line\n"], []))
        self.assertEqual(self.both([start + out + frame(ERROR, 1, 2, b"sentence") + done], *on)[0], 127)
        self.assertEqual(self.both([start + frame(TEXT, NOBODY_MORE, 0) + frame(OUT, 1, 2, b"x") + done], *on), (0, [], [b"x"]))
        two = start + frame(STARTED, 2, 78, b"host")
        self.assertEqual(self.both([two + out + frame(OUT, 2, 1, b"a") + frame(OUT, 1, 1, b"b") + done], *on), (0, [b"ba", b"line\n"], []))
        for cut in range(0, len(start + out + ended), 5):
            self.assertEqual(self.both([(start + out + ended)[:cut]], *on)[0] in (255, 3), True)
        for wrong in (frame(77, 1, 0), frame(OUT, 1, 3, b"x"), frame(OUT, 70_000, 1, b"x"), frame(OUT, NOBODY_MORE, 1, b"x"), frame(OUT, 1, 1),
                      frame(TAKEN, 1, 5), struct.pack("<IIII", OUT, 1 << 31, 1, 1), struct.pack("<IIII", OUT, NOBODY_MORE, 1, 1), frame(REQUEST, 1, 1)):
            self.both([start + out + wrong + ended + done], *on)
            self.both([start, out, wrong, ended + done])
            self.both([wrong])

    def test_a_signal_and_the_end(self):
        """A signal that comes just before the end of the job ends the command, too: else a loop of a shell would go on."""
        def once():
            p = self.start("exec", "--on", "1", "--", "true")
            with self.listener.accept()[0] as s:
                s.recv(4096)
                p.send_signal(signal.SIGINT)
                s.sendall(frame(STARTED, 1, 77, b"host") + frame(ENDED, 1, 3) + frame(DONE, NOBODY_MORE, 1))
                p.communicate(timeout=LIMIT)
            return p.returncode == -signal.SIGINT  # 3: the whole command has taken over before
        until("it ends by the signal", once)

    def start_without_room(self):
        """A command with more input than the control node, which hangs, has room for. Returns the command, which waits for room, and the
        connection."""
        with open(os.path.join(self.tmp.name, "input"), "wb") as f:
            f.truncate(16 << 20)
        p = self.start("exec", "--on", "1", "--stdin", f.name, "--", "true")
        s = self.listener.accept()[0]
        self.addCleanup(s.close)
        s.settimeout(LIMIT)
        s.recv(4096)
        s.sendall(frame(STARTED, 1, 77, b"host") + frame(TAKEN, NOBODY_MORE, 256 << 10))

        def waits():
            came = lambda: struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, bytes(4)))[0]  # noqa: E731
            before = came()
            s.sendall(frame(TAKEN, NOBODY_MORE, 256 << 10))
            time.sleep(0.3)
            return before and came() == before
        until("it waits for room", waits)
        return p

    def test_input_and_interrupted(self):
        """The control node hangs, and has no room for more input: the second signal ends the command all the same, before another one,
        which has waited for longer, and which ends when the control node counts as silent."""
        other, p = self.start_without_room(), self.start_without_room()
        for number in (signal.SIGINT, signal.SIGTERM):
            p.send_signal(number)
            until("it has handled the signal", lambda number=number: p.poll() is not None or not processes.pending(p.pid, number))
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 255)
        self.assertIsNone(other.poll())

    def test_a_part_is_written(self):
        """Of output of which the small command could write only a part, the whole one writes the rest."""
        folder = tempfile.mkdtemp(dir=self.tmp.name)
        weft = shutil.copy(WEFT, os.path.join(folder, "weft"))
        os.mkdir(os.path.join(folder, "whole"))
        with open(os.path.join(folder, "whole", "weft"), "w", encoding="ascii") as f:  # there is room again
            f.write(f"#!/bin/sh\nulimit -S -f unlimited\nexec {WHOLE} \"$@\"\n")
        os.chmod(f.name, 0o755)
        out = os.path.join(folder, "out")
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for lines, text in ((False, b"one" * 30), (True, b"two\nthree\n" * 9)):
            frames = frame(STARTED, 1, 77, b"a") + (frame(STARTED, 2, 78, b"b") if lines else b"") + frame(OUT, 1, 1, b"0\n") + frame(OUT, 1, 1, text)
            node = threading.Thread(target=self.serve, args=[[frames + frame(OUT, 1, 1, b"1\n") + frame(ENDED, 1, 3) + frame(DONE, NOBODY_MORE, 1)]])
            node.start()
            with open(out, "wb") as f:
                got = self.one(weft, ["--on", "1,2" if lines else "1", "true"], stdout=f,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard)))
            node.join()
            with open(out, "rb") as f:
                self.assertEqual((got[0], got[2], f.read()), (3, [], b"0\n" + text + b"1\n"))

    def test_random(self):
        """Any bytes: never a crash, and the same status."""
        rng = random.Random(seed := random.randrange(1 << 32))
        print("seed", seed, file=sys.stderr)
        for _ in range(150):
            frames = [frame(STARTED, 1, 7, b"h")] * rng.randrange(3)
            for _ in range(rng.randrange(6)):
                kind = rng.choice([OUT, OUT, ENDED, TEXT, ERROR, STARTED, rng.randrange(20)])
                payload = rng.choice([b"", b"x\n", b"x" * rng.randrange(5000), b"text"])
                frames.append(frame(kind, rng.choice([1, 1, 1, NOBODY_MORE, rng.randrange(1 << 17)]), rng.choice([1, 2, rng.randrange(1 << 32)]), payload))
            data = bytearray(b"".join(frames + [frame(DONE, NOBODY_MORE, 1)] * rng.randrange(2)))
            for _ in range(rng.choice([0, 0, 1, 3])):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            at = rng.randrange(len(data) + 1)
            pieces = [bytes(data)] if rng.randrange(2) else [bytes(data[:at]), bytes(data[at:])]
            got = self.each(pieces, "--on", "1")
            self.assertEqual(got[0][0], got[1][0], pieces)
            self.assertGreaterEqual(got[0][0], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
