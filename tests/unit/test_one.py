#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/one: the environment that it gives a test, the time limit, and which processes of a failed test it ends.

Usage: test_one.py PATH-OF-ONE [TEST...]
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ONE = os.path.abspath(sys.argv.pop(1))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class One(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def one(self, script, seconds=60, **kw):
        return subprocess.run([sys.executable, ONE, str(seconds), "sh", "-c", script], env={**os.environ, "TMPDIR": self.folder},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)

    def test_status(self):
        self.assertEqual([self.one(f"exit {n}").returncode for n in (0, 3, 77)], [0, 3, 77])
        self.assertEqual(self.one("kill -KILL $$").returncode, 128 + signal.SIGKILL)

    def test_limit(self):
        for script in ("sleep 600", "trap '' TERM; sleep 600 & wait; wait; sleep 600"):
            ended = self.one(script, seconds=0.3)
            self.assertEqual(ended.returncode, 124, script)
            self.assertIn("no end within 0 s", ended.stderr)

    def test_default_signals(self):
        def ignore():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

        for name in ("INT", "HUP"):
            self.assertEqual(self.one(f"kill -{name} $$; sleep 1", preexec_fn=ignore).returncode, 128 + signal.Signals["SIG" + name])

    def test_what_a_test_leaves(self):
        leave = 'echo x >"$TMPDIR/weft-left"; setsid sleep 600 >/dev/null 2>&1 & echo $!; '
        self.assertEqual(self.one('test -d "$TMPDIR" && test "$TMPDIR" != ' + self.folder).returncode, 0)
        self.assertEqual(os.listdir(self.folder), [], "an empty folder stays")

        failed = self.one(leave + "exit 1")
        self.assertEqual((failed.returncode, os.listdir(self.folder)), (1, []))
        self.assertFalse(alive(int(failed.stdout)))

        passed = self.one(leave)
        pid = int(passed.stdout)
        self.assertTrue(alive(pid))  # tests/leftovers tells of it
        os.kill(pid, signal.SIGKILL)
        (own,) = os.listdir(self.folder)
        self.assertEqual(os.listdir(os.path.join(self.folder, own)), ["weft-left"])

    def test_told_to_end(self):
        one = subprocess.Popen([sys.executable, ONE, "60", "sh", "-c", "echo $$; exec sleep 600"], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.folder})
        pid = int(one.stdout.readline())
        one.send_signal(signal.SIGTERM)
        self.assertEqual(one.wait(60), 124)
        one.stdout.close()
        until = time.monotonic() + 10
        while alive(pid) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertFalse(alive(pid))
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
