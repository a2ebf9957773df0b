#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft cat, weft files, weft pin: files of the nodes of a standing cluster.

Usage: test_files.py PATH-OF-WEFT CLUSTER, CLUSTER: "-n 2", or "--softverbs switch:2"
"""
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from processes import clean_env, patience  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
CLUSTER = sys.argv[2].split()
LIMIT = patience(60)
until = functools.partial(processes.until, limit=LIMIT)
MIB = 1 << 20
CACHE = 16 * MIB


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-test-files-")
        cls.addClassCleanup(cls.tmp.cleanup)
        cls.env = clean_env(XDG_RUNTIME_DIR=cls.tmp.name)
        cls.root = os.path.join(cls.tmp.name, "root")
        os.mkdir(cls.root)
        subprocess.run([WEFT, "up", *CLUSTER, "--root", cls.root, "--cache", "16M"], env=cls.env, check=True, timeout=LIMIT,
                       stdin=subprocess.DEVNULL, capture_output=True)
        cls.addClassCleanup(subprocess.run, [WEFT, "down"], env=cls.env, check=False, timeout=LIMIT, capture_output=True)

    def make(self, name, data):
        with open(os.path.join(self.root, name), "wb") as f:
            f.write(data)
        return data

    def weft(self, *args, code=0):
        p = subprocess.run([WEFT, *args], env=self.env, capture_output=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL)
        if p.returncode != code:
            self.fail(f"{args}: {p.returncode}: {p.stderr.decode()}")
        return p.stderr.decode() if code else p.stdout

    def node(self, number):
        return next(n for n in json.loads(self.weft("files", "--json"))["nodes"] if n["node"] == number)

    def file(self, number, path):
        return next((f for f in self.node(number)["files"] if f["path"] == path and not f["stale"]), None)

    def test_cat(self):
        data = self.make("big", random.Random(1).randbytes(5 * MIB + 77))
        for node in (0, 1):
            self.assertEqual(self.weft("cat", f"{node}:big"), data)
        self.assertEqual(self.weft("cat", f"1:{self.root}/big"), data)
        for first, last in ((0, 0), (5, 14), (MIB - 1, MIB), (MIB, 3 * MIB - 1), (5 * MIB, 99 * MIB), (99 * MIB, 100 * MIB)):
            self.assertEqual(self.weft("cat", "--range", f"{first}-{last}", "1:big"), data[first:last + 1], (first, last))
        self.assertEqual(self.weft("cat", "1:big", "--range", f"{5 * MIB}-"), data[5 * MIB:])
        f = self.file(1, "big")
        self.assertEqual((f["bytes"], f["cached_bytes"], f["disk_reads"], f["readers"]), (len(data), len(data), 6, 0))
        self.make("empty", b"")
        self.assertEqual(self.weft("cat", "0:empty"), b"")
        host = json.loads(self.weft("status", "--json"))["nodes"][0]["host"]
        self.assertEqual(self.weft("cat", f"{host}:big"), data)
        # A file that is written anew is read anew.
        data = self.make("big", b"new")
        self.assertEqual(self.weft("cat", "1:big"), data)

    def test_errors(self):
        self.make("x", b"x")
        os.symlink("/etc/passwd", os.path.join(self.root, "link"))
        os.mkdir(os.path.join(self.root, "folder"))
        for path in ("/etc/passwd", "link", "../x", "folder/../../root/x"):
            self.assertIn(f"{path}: node 1 serves only files below its WEFT_FILE_ROOT, which is {self.root}", self.weft("cat", f"1:{path}", code=1))
        self.assertIn("nothing at node 1: No such file", self.weft("cat", "1:nothing", code=1))
        self.assertIn("this is a directory", self.weft("cat", "1:folder", code=1))
        self.assertIn("there is no host or node 'nowhere'", self.weft("cat", "nowhere:x", code=1))
        self.assertIn("cluster 'other' is not up", self.weft("cat", "--cluster", "other", "1:x", code=1))
        for word in ("x", ":x", "1:"):
            self.assertIn("write HOST:PATH", self.weft("cat", word, code=2))
        for text in ("5", "5-4", "-5", "a-b", "1-2-3"):
            self.assertIn("write FIRST-LAST", self.weft("cat", "--range", text, "1:x", code=2))
        self.assertIn("give one file", self.weft("cat", code=2))
        for args in (["--root", "relative"], ["--cache", "1M"], ["--cache", "much"]):
            self.assertIn(args[0], self.weft("up", "-n", "1", "--cluster", "x", *args, code=2))

    def test_pin(self):
        pinned, other = self.make("pinned", random.Random(2).randbytes(7 * MIB)), self.make("other", random.Random(3).randbytes(30 * MIB))
        self.weft("pin", "1:pinned")
        f = self.file(1, "pinned")
        self.assertEqual((f["pinned"], f["cached_bytes"], f["disk_reads"]), (True, len(pinned), 7))
        self.assertEqual(self.weft("cat", "1:other"), other)  # more than the cache has room for
        self.assertLessEqual(self.node(1)["cached_bytes"], CACHE)
        self.assertGreater(self.node(1)["dropped"], 0)
        self.assertEqual(self.weft("cat", "1:pinned"), pinned)
        self.assertEqual(self.file(1, "pinned")["disk_reads"], 7)
        self.assertIn(b"pinned", self.weft("files"))
        self.assertIn("more than half of the file cache", self.weft("pin", "1:other", code=1))
        self.weft("pin", "--unpin", "1:pinned")
        self.assertIn("node 1 has not pinned pinned", self.weft("pin", "--unpin", "1:pinned", code=1))
        self.assertEqual(self.weft("cat", "1:other"), other)
        self.assertIsNone(self.file(1, "pinned"))

    def test_memory(self):
        """How much of each node's pool is used for what."""
        self.make("seen", b"x" * (3 * MIB))
        self.weft("cat", "0:seen")
        def use():
            node = next(n for n in json.loads(self.weft("status", "--json"))["nodes"] if n["node"] == 0)
            use = node["pool_use"]
            self.assertEqual(sum(use.values()), node["pool_live_bytes"])
            return use
        cached = sum(f["cached_bytes"] for f in self.node(0)["files"])
        self.assertGreaterEqual(cached, 3 * MIB)
        until("the node tells it", lambda: use()["files"] == cached)
        with subprocess.Popen([WEFT, "exec", "--on", "1", "--stdin", "-", "--", "cat"], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            until("the job's rings are counted", lambda: use()["streams"] > 0)
            p.communicate(timeout=LIMIT)
        until("the job's rings are gone", lambda: use()["streams"] == 0)
        lines = self.weft("status", "--memory").decode().splitlines()
        self.assertEqual(lines[0].split(), ["node", "host", "pool", "in", "use", "network", "streams", "files", "tasks", "other"])
        self.assertEqual(len(lines), 3)
        self.assertIn("exclude each other", self.weft("status", "--memory", "--json", code=2))

    def test_many_at_once(self):
        """Eight commands, one read of the disk."""
        data = self.make("shared", random.Random(4).randbytes(6 * MIB + 1))
        out = [None] * 8
        def read(i):
            out[i] = self.weft("cat", "1:shared")
        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(out))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(out, [data] * len(out))
        self.assertEqual(self.file(1, "shared")["disk_reads"], 7)
        self.assertEqual((self.node(1)["given_bytes"], self.node(1)["passed_bytes"]), (0, 0))  # both nodes are on one host

    def test_reader_goes(self):
        """A command is killed; another one writes to a pipe whose reader has ended."""
        self.make("long", random.Random(5).randbytes(12 * MIB))
        for end in ("kill", "close"):
            with subprocess.Popen([WEFT, "cat", "1:long"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
                self.assertEqual(len(p.stdout.read(1000)), 1000)
                self.assertEqual(self.file(1, "long")["readers"], 1)
                if end == "kill":
                    p.kill()
                p.stdout.close()
                self.assertNotEqual(p.wait(LIMIT), 0)
            until("its file is closed", lambda: self.file(1, "long")["readers"] == 0)

    def test_changes(self):
        """The file changes while it is printed: what was printed is of the old one."""
        old = self.make("changing", random.Random(6).randbytes(40 * MIB))
        with subprocess.Popen([WEFT, "cat", "1:changing"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as p:
            got = p.stdout.read(1000)
            self.make("changing", b"new" * 20 * MIB)
            rest, error = p.communicate(timeout=LIMIT)
            got += rest
            self.assertEqual(p.returncode, 1)
        self.assertLess(len(got), len(old))
        self.assertEqual(got, old[:len(got)])
        self.assertIn(b"changing at node 1 has changed since it was opened", error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
