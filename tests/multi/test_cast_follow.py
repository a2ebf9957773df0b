#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft cast --follow: a file that another program still writes.

Usage: test_cast_follow.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER: "-n 4", or "--softverbs switch:4"
"""
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
from cast_test import LIMIT, WEFT, Cast, until  # noqa: E402
from processes import patience  # noqa: E402

LONG = str(int(patience(30)))  # longer than the writers here pause
STEP = 300_000


class Follow(Cast):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(9)
        self.content = b""
        self.path = os.path.join(self.here, "model")

    def grow(self, name="model.part", bytes_=STEP):
        """Write more at the end of the file."""
        more = self.rng.randbytes(bytes_)
        with open(os.path.join(self.here, name), "ab") as f:
            f.write(more)
        self.content += more

    def begin(self, *words):
        p = subprocess.Popen([WEFT, "cast", "--json", *words, "all:" + self.dest + "/"], env=self.env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    def end(self, p, code):
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, code, err)
        return json.loads(out), err.decode()

    def arrived(self, node):
        """Bytes of the file that the node has, under any name."""
        total = 0
        for name in os.listdir(self.at(node)) if os.path.isdir(self.at(node)) else []:
            try:
                total += os.path.getsize(self.at(node, name))
            except FileNotFoundError:  # it has just got its name
                pass
        return total

    def all_arrived(self):
        until("all that is written has arrived", lambda: all(self.arrived(node) == len(self.content) for node in (1, 2, 3)))

    def right(self, name="model"):
        for node in (1, 2, 3):
            self.assertEqual(os.listdir(self.at(node)), [name])
            with open(self.at(node, name), "rb") as f:
                self.assertTrue(f.read() == self.content, node)
            self.assertEqual(os.stat(self.at(node, name)).st_mtime_ns, os.stat(os.path.join(self.here, name)).st_mtime_ns)

    def no_name(self):
        for node in (1, 2, 3):
            self.assertFalse(os.path.exists(self.at(node, "model")), node)

    def test_renamed(self):
        """A slow writer writes the file, which then gets its name: each part arrives before the next one is written, and no file has the
        name before that."""
        self.grow()
        p = self.begin("--follow=" + LONG, self.path)
        for _ in range(5):
            self.all_arrived()
            self.no_name()
            self.grow()
        self.grow(bytes_=3_000_000)
        os.rename(self.path + ".part", self.path)
        got, _ = self.end(p, 0)
        self.assertEqual((got["ok"], got["bytes"], got["sent_bytes"]), (True, len(self.content), len(self.content)))
        self.right()
        # Once more: it has its name now, and nothing is sent.
        got, _ = self.end(self.begin("--follow=1", self.path), 0)
        self.assertEqual((got["ok"], got["sent_bytes"]), (True, 0))
        self.right()

    def test_named(self):
        """A file that has its name from the start is complete when it has not grown for so long."""
        self.grow("model")
        os.chmod(self.path, 0o640)
        p = self.begin("--follow=2", self.path)
        self.all_arrived()
        self.no_name()
        self.grow("model")
        self.end(p, 0)
        self.right()
        self.assertEqual(os.stat(self.at(1, "model")).st_mode & 0o777, 0o640)
        # It has grown since.
        self.grow("model")
        got, _ = self.end(self.begin("--follow=1", "--verify", self.path), 0)
        self.assertTrue(got["ok"])
        self.right()

    def test_writer_killed(self):
        """The writer is killed: the file gets no name, and the command prints why. When another writer has continued, the same command
        sends the rest."""
        self.grow()
        got, said = self.end(self.begin("--follow=1", self.path), 1)
        self.assertIn("model.part has not grown for 1 s and does not have its final name: not sent; give the same command again", said)
        self.assertFalse(got["ok"])
        self.no_name()
        self.grow()
        p = self.begin("--follow=" + LONG, self.path + ".part")  # this name means the same
        self.all_arrived()
        os.rename(self.path + ".part", self.path)
        got, _ = self.end(p, 0)
        self.assertEqual(got["sent_bytes"], STEP)
        self.right()

    def test_truncated_and_overwritten(self):
        """A file that is changed elsewhere than at its end cannot be followed."""
        self.grow()
        p = self.begin("--follow=" + LONG, self.path)
        self.all_arrived()
        os.truncate(self.path + ".part", 100)
        self.assertIn("model: became shorter while it was followed: not sent", self.end(p, 1)[1])
        self.no_name()
        self.grow()
        with open(self.path + ".part", "rb") as f:
            self.content = f.read()
        p = self.begin("--follow=" + LONG, self.path)
        self.all_arrived()
        with open(self.path + ".part", "r+b") as f:
            f.write(b"other")
        os.rename(self.path + ".part", self.path)
        self.assertIn("model: an earlier part of the file was changed while it was followed", self.end(p, 1)[1])
        self.no_name()
        with open(self.path, "rb") as f:
            self.content = f.read()
        self.cast(self.path, "all:" + self.dest + "/")
        self.right()

    def test_removed(self):
        self.grow()
        p = self.begin("--follow=" + LONG, self.path)
        self.all_arrived()
        os.unlink(self.path + ".part")
        self.assertIn("model: was removed while it was followed: not sent", self.end(p, 1)[1])
        self.no_name()

    def test_renamed_elsewhere(self):
        """The file is complete only if it gets the name without the suffix."""
        self.grow()
        p = self.begin("--follow=" + LONG, self.path)
        self.all_arrived()
        os.rename(self.path + ".part", self.path + ".thrown-away")
        self.assertIn("model.part was renamed, but not to the name without its suffix: not sent", self.end(p, 1)[1])
        self.no_name()

    def grow_beside(self, old, given):
        with open(self.path, "wb") as f:
            f.write(old)
        self.grow()
        p = self.begin("--follow=" + LONG, self.path + given)
        self.all_arrived()
        self.no_name()
        os.rename(self.path + ".part", self.path)
        self.end(p, 0)
        self.right()

    def test_old_file(self):
        """A file with the name without the suffix exists already: the file that was given is followed nevertheless."""
        self.grow_beside(b"old", ".part")

    def test_empty_file(self):
        """An empty file with the final name exists beside the file that grows, as some browsers make it."""
        self.grow_beside(b"", "")

    def test_interrupted_and_receiver_killed(self):
        """Ctrl-C, and the same command again; then a receiver is killed: the others get the rest as it is written."""
        self.grow(bytes_=2_000_000)
        p = subprocess.Popen([WEFT, "cast", "--follow=" + LONG, self.path, "all:" + self.dest + "/"], env=self.env, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        self.all_arrived()
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGINT)
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        self.no_name()
        self.grow()
        p = self.begin("--follow=" + LONG, self.path)
        self.all_arrived()
        os.kill(self.nodes_of_cast()[2], signal.SIGKILL)
        self.grow()
        until("the rest has arrived", lambda: all(self.arrived(node) == len(self.content) for node in (1, 3)))
        os.rename(self.path + ".part", self.path)
        got, said = self.end(p, 1)
        self.assertRegex(said, r":2 is gone; the other hosts still get the files")
        self.assertEqual([h["complete"] for h in got["hosts"]], [True, False, True])
        # What had arrived is used; what was on its way when the receiver died is perhaps sent again.
        self.assertIn(got["sent_bytes"], (2 * STEP, 3 * STEP))
        got, _ = self.end(self.begin("--follow=1", self.path), 0)
        self.assertTrue(got["ok"])
        self.right()

    def test_fast_writer(self):
        """A writer without a pause, while it is sent."""
        ended = threading.Event()

        def write():
            while not ended.is_set():
                self.grow(bytes_=100_000)
        self.grow()
        thread = threading.Thread(target=write)
        thread.start()
        try:
            p = self.begin("--follow=" + LONG, "--bwlimit", "20M", self.path)
            until("some has arrived", lambda: self.arrived(3) > 3_000_000)
        finally:
            ended.set()
            thread.join()
        os.rename(self.path + ".part", self.path)
        self.end(p, 0)
        self.right()

    def test_cp(self):
        self.grow("model")
        self.weft("cp", "--follow=1", "2:" + self.path, "1,3:" + self.dest + "/")
        for node in (1, 3):
            self.assertEqual(os.path.getsize(self.at(node, "model")), STEP)

    def test_refused(self):
        self.grow("model")
        for words, said in ((["--follow=0", self.path], "--follow '0'"), (["--follow=x", self.path], "--follow 'x'"),
                            (["--follow", self.path, self.path], "--follow takes exactly one SRC"), (["--follow", self.here + "/"], "--follow takes exactly one SRC")):
            self.assertIn(said, self.cast(*words, "1:/x", code=2).stderr, words)
        self.assertIn("is not a regular file", self.cast("--follow", self.here, "1:/x", code=1).stderr)
        self.assertIn("neither under this name nor with .part", self.cast("--follow", self.path + "l", "1:/x", code=1).stderr)
        begin = time.monotonic()
        self.cast("--follow", "--dry-run", self.path, "1:" + self.dest)
        self.assertLess(time.monotonic() - begin, patience(30))
        self.assertFalse(os.path.exists(self.at(1)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
