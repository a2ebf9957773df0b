#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft cast and weft cp over a standing cluster: what arrives, what is sent again, who is named when something fails. The nodes are all on
this host; {node} in DEST gives each a folder of its own.

Usage: test_cast.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER: "-n 4", or "--softverbs switch:4"
"""
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from cast_test import LIMIT, WEFT, Cast, tree, until  # noqa: E402

ODD = [b"two words", b"new\nline", b"\xff\xfe", b"-x", b"*", "häuser".encode(), b"'quoted\" $HOME `id` \\", b"x" * 255, b"..x", b" "]


class Trees(Cast):
    def fill(self):
        rng = random.Random(1)
        for i in range(700):
            self.file(f"src/many/{i % 7}/file {i}", rng.randbytes(rng.randrange(9000)), rng.choice([0o600, 0o644, 0o755, 0o444]))
        for name in ODD:
            path = os.path.join(os.fsencode(self.src), name)
            with open(path, "wb") as f:
                f.write(name * 3)
        self.file("src/big", rng.randbytes(5_000_001))
        self.file("src/empty file", b"")
        self.file("src/closed/x", b"x")
        os.mkdir(os.path.join(self.src, "empty"), 0o711)
        os.link(os.path.join(self.src, "big"), os.path.join(self.src, "many", "again"))
        os.link(os.path.join(self.src, "big"), os.path.join(self.src, "a first name"))
        for target, name in (("big", "l1"), ("/nonexistent/away", "l2"), ("../..", "l3"), ("l1", "many/l4")):
            os.symlink(target, os.path.join(self.src, name))
            os.utime(os.path.join(self.src, name), ns=(10**18, 10**18 + 7), follow_symlinks=False)
        deep = os.path.join(self.src, *["deep"] * 40)
        os.makedirs(deep)
        os.utime(deep, ns=(10**18, 123456789012345678))
        with open(os.path.join(self.src, "holes"), "wb") as f:
            for at in (0, 3_000_000, 7_000_000):
                f.seek(at)
                f.write(b"data")
            f.truncate(12_000_000)
        os.chmod(os.path.join(self.src, "closed"), 0o500)
        self.addCleanup(os.chmod, os.path.join(self.src, "closed"), 0o700)

    def test_tree(self):
        self.fill()
        got = self.summary(self.src, "all:" + self.dest)
        self.assertEqual((got["ok"], len(got["hosts"]), got["messages"]), (True, 3, []))
        self.assertLess(got["sent_bytes"], 20_000_000)
        for node in (1, 2, 3):
            self.same(node)
            self.assertLess(os.stat(self.at(node, "src", "holes")).st_blocks * 512, 1_000_000)
        self.assertFalse(os.path.exists(self.at(0)))
        self.no_parts()
        got = self.summary(self.src, "all:" + self.dest)
        self.assertEqual((got["ok"], got["sent_bytes"]), (True, 0))
        # Only what has changed is sent.
        self.file("src/many/0/file 0", b"new")
        os.chmod(os.path.join(self.src, "many", "1", "file 1"), 0o640)
        os.unlink(self.at(2, "src", "l1"))
        os.symlink("/elsewhere", self.at(2, "src", "l1"))
        got = self.summary(self.src, "all:" + self.dest)
        self.assertEqual((got["ok"], got["sent_bytes"]), (True, 3))
        for node in (1, 2, 3):
            self.same(node)
        for folder, folders, _ in os.walk(self.here):
            for name in folders:
                if name == "closed":
                    os.chmod(os.path.join(folder, name), 0o700)

    def test_names_of_dest(self):
        one = self.file("one", b"1")
        self.cast(one, "--to", "1,3", self.dest + "/")
        self.assertEqual(sorted(os.listdir(self.at(1))), ["one"])
        self.assertFalse(os.path.exists(self.at(2)))
        self.cast(one, "2:" + self.at(2, "deeper", "name"))
        self.assertEqual(os.listdir(self.at(2, "deeper")), ["name"])
        self.cast(one, "2:" + self.at(2, "deeper"))
        self.assertEqual(sorted(os.listdir(self.at(2, "deeper"))), ["name", "one"])
        self.file("src/in", b"2")
        self.cast(self.src + "/", one, "3:" + self.at(3))
        self.assertEqual(sorted(os.listdir(self.at(3))), ["in", "one"])
        self.cast("src", "1:relative", cwd=self.here)
        self.assertEqual(os.listdir(os.path.join(self.tmp.name, "relative")), ["src"])

    def test_cp(self):
        self.file("src/a", b"a" * 100_000)
        said = self.weft("cp", "2:" + self.src, "1,3:" + self.dest).stderr
        self.assertRegex(said, r"^weft cp: 1 file, .*\n$")
        for node in (1, 3):
            self.same(node)
        self.weft("cp", "3:" + self.src, "here", cwd=self.here)
        self.assertEqual(tree(os.path.join(self.here, "here", "src")), tree(self.src))
        self.weft("cp", "src/a", "2:" + self.at(2, "b"), cwd=self.here)
        self.assertEqual(os.path.getsize(self.at(2, "b")), 100_000)
        # A relative SRC begins in the home folder, also with this host's own name.
        self.file("../from home", b"1")
        self.addCleanup(os.unlink, os.path.join(self.tmp.name, "from home"))
        self.weft("cp", "0:from home", "1:" + self.dest + "/", cwd=self.here)
        self.assertTrue(os.path.exists(self.at(1, "from home")))
        self.assertIn("same host", self.weft("cp", "1:/a", "2:/b", "/c", code=2).stderr)

    def test_dest_is_a_link(self):
        """If DEST is a symbolic link to a file, the link stays and the file is written, as with cp and scp."""
        one = self.file("one", b"new")
        for links, name in ((("link", "real/file"),), "real/file"), ((("a", "b"), ("b", self.at(1, "real/c")), ("real/c", "../file")), "file"), \
                ((("away", os.path.join(self.here, "away")),), "../away"), ((("to new", "real/new"),), "real/new"):
            for link, target in links:
                os.makedirs(self.at(1, "real"), exist_ok=True)
                os.symlink(target, self.at(1, link))
            if links[0][0] != "to new":  # a link that leads to nothing: the file is made
                self.file(os.path.join("d1", name), b"old")
            said = self.weft("cp", "--dry-run", one, "1:" + self.at(1, links[0][0]))
            self.assertIn("would get one", said.stdout)
            for again in range(2):
                said = self.weft("cp", "--json", one, "1:" + self.at(1, links[0][0]))
                self.assertEqual(json.loads(said.stdout)["hosts"][0]["files_right_before"], again)
            self.assertEqual([os.readlink(self.at(1, link)) for link, _ in links], [target for _, target in links])
            self.assertFalse(os.path.islink(self.at(1, name)))
            with open(self.at(1, name), "rb") as f:
                self.assertEqual(f.read(), b"new")
        os.symlink("real", self.at(1, "folder"))
        self.cast(one, "1:" + self.at(1, "folder"))
        os.unlink(self.at(1, "real", "one"))
        os.symlink("../file", self.at(1, "real", "one"))  # nobody has named this link: it is replaced
        self.file("d1/file", b"old")
        self.cast(one, "1:" + self.at(1, "folder"))
        self.assertFalse(os.path.islink(self.at(1, "real", "one")))
        self.assertEqual(os.path.getsize(self.at(1, "file")), 3)
        with open(self.at(1, "file"), "rb") as f:
            self.assertEqual(f.read(), b"old")
        self.no_parts()

    def test_dest_is_a_wrong_link(self):
        one = self.file("one", b"1")
        os.mkdir(self.at(1))
        for target, said in ("none/file", "leads into a directory that does not exist"), ("none/", "leads to a directory that does not exist"), \
                ("link", "leads to too many others"), ("/dev/full", "replace the device"), ("x" * 200 + "/..", "leads into a directory"):
            os.symlink(target, self.at(1, "link"))
            self.assertIn(said, self.cast(one, "1:" + self.at(1, "link"), code=1).stderr)
            self.assertEqual(os.readlink(self.at(1, "link")), target)
            os.unlink(self.at(1, "link"))
        self.assertEqual(os.listdir(self.at(1)), [])
        if os.geteuid() == 0:  # in a folder like /tmp, a link of another user is not followed
            os.chmod(self.at(1), 0o1777)
            mine = self.file("mine", b"old")
            os.symlink(mine, self.at(1, "link"))
            os.lchown(self.at(1, "link"), 65534, 65534)
            said = self.cast(one, "1:" + self.at(1, "link"), code=1).stderr
            self.assertIn("another user has made this symbolic link", said)
            with open(mine, "rb") as f:
                self.assertEqual(f.read(), b"old")

    def test_checksum_and_verify(self):
        path = self.file("src/a", b"right" * 1_000_000)
        self.file("src/b", b"b")
        self.cast(self.src, "all:" + self.dest)
        st = os.stat(path)
        with open(self.at(2, "src", "a"), "r+b") as f:
            f.seek(3_000_000)
            f.write(b"wrong")
        os.utime(self.at(2, "src", "a"), ns=(st.st_atime_ns, st.st_mtime_ns))
        self.assertEqual(self.summary(self.src, "all:" + self.dest)["sent_bytes"], 0)
        got = self.summary("--verify", self.src, "all:" + self.dest)
        self.assertEqual((got["ok"], got["sent_bytes"]), (True, 5_000_000))
        with open(self.at(3, "src", "b"), "wb") as f:
            f.write(b"c")
        os.utime(self.at(3, "src", "b"), ns=(os.stat(os.path.join(self.src, "b")).st_mtime_ns,) * 2)
        os.utime(self.at(1, "src", "b"), ns=(1, 1))  # the content is right: only its time is set
        got = self.summary("--checksum", self.src, "all:" + self.dest)
        self.assertEqual((got["ok"], got["sent_bytes"]), (True, 1))
        for node in (1, 2, 3):
            self.same(node)

    def test_checksum_of_some(self):
        """With --checksum, one host lacks the files: the data sent to it is compared with the files of the other hosts."""
        self.file("src/a", b"right" * 500_000)
        with open(self.file("src/holes", b"1"), "r+b") as f:
            f.truncate(3_000_000)
        self.cast(self.src, "1,3:" + self.dest)
        self.file("d3/src/a", b"wrong" * 500_000)
        got = self.summary("--checksum", self.src, "all:" + self.dest)
        self.assertTrue(got["ok"])
        for node in (1, 2, 3):
            self.same(node)

    def test_mode(self):
        """Owners are not copied. So the set-user-ID bit is not copied either: it would apply to another user."""
        path = self.file("src/program", b"1")
        os.chmod(path, 0o6755)
        os.chmod(self.src, 0o2755)
        for _ in range(2):
            self.cast(self.src, "1:" + self.dest)
            self.assertEqual(stat.S_IMODE(os.stat(self.at(1, "src", "program")).st_mode), 0o755)
            self.assertEqual(stat.S_IMODE(os.stat(self.at(1, "src")).st_mode) & 0o6000, 0)
            os.chmod(self.at(1, "src", "program"), 0o4755)

    def test_delete_exclude_dry_run(self):
        self.file("src/a", b"a")
        self.file("src/skip/b.o", b"b")
        self.file("src/c.o", b"c")
        for name in ("d1/src/A", "d1/src/old", "d1/src/older/x/y", "d1/src/keep.o", "d1/beside"):
            self.file(name, b"old")
        os.symlink(self.src, self.at(1, "src", "link"))  # what it leads to stays
        before = tree(self.at(1))
        p = self.cast("--dry-run", "--delete", "--exclude", "*.o", self.src, "1,2:" + self.dest)
        self.assertEqual(tree(self.at(1)), before)
        self.assertFalse(os.path.exists(self.at(2)))
        said = sorted(line.split(": ", 1)[1] for line in p.stdout.splitlines())
        self.assertEqual(said, [f"would delete src/{name}" for name in ("A", "link", "old", "older")] + 2 * ["would get src/a"])
        self.cast("--delete", "--exclude", "*.o", self.src, "1:" + self.dest)
        self.assertEqual(sorted(os.listdir(self.at(1, "src"))), ["a", "keep.o", "skip"])
        self.assertEqual(os.listdir(self.at(1)), ["src", "beside"] if os.listdir(self.at(1))[0] == "src" else ["beside", "src"])
        self.assertTrue(os.path.exists(os.path.join(self.src, "a")))
        # What is excluded stays, also deep in a folder that is deleted; so do the folders that it is in.
        for name in ("gone/x", "gone/in/y", "gone/in/keep.o", "gone/all/z"):
            self.file("d1/src/" + name, b"old")
        before = tree(self.at(1))
        p = self.cast("--dry-run", "--delete", "--exclude", "*.o", self.src, "1:" + self.dest)
        self.assertEqual(tree(self.at(1)), before)
        self.assertEqual(sorted(line.split(": ", 1)[1] for line in p.stdout.splitlines()),
                         ["would delete src/gone/all", "would delete src/gone/in/y", "would delete src/gone/x"])
        p = self.cast("--delete", "--exclude", "*.o", self.src, "1:" + self.dest)
        self.assertEqual([names for _, _, names in os.walk(self.at(1, "src", "gone"))], [[], ["keep.o"]])
        shutil.rmtree(self.at(1, "src", "gone"))
        self.cast("--delete", "--exclude", "src/skip/", self.src + "/", "1:" + self.at(1, "src"))
        self.assertEqual(sorted(os.listdir(self.at(1, "src"))), ["a", "c.o", "skip"])

    def test_delete_while_another_writes(self):
        """--delete removes unfinished files of casts that have ended, but not those of a cast that is running."""
        self.file("src/a", b"a")
        part = self.file("d1/src/.weft-cast-0123456789abcdef.part", b"half")
        with open(part, "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.cast("--delete", self.src, "1:" + self.dest)
            self.assertTrue(os.path.exists(part))
        self.cast("--delete", self.src, "1:" + self.dest)
        self.same(1)

    def test_mode_of_dest(self):
        """If a cast of SRC/ makes DEST, DEST is as private as SRC; if DEST exists already, it keeps its mode."""
        self.file("src/a", b"a")
        self.file("src/b", b"b")
        os.chmod(self.src, 0o700)
        os.mkdir(self.at(2), 0o755)
        self.cast(self.src + "/", "1,2:" + self.dest)
        self.assertEqual([stat.S_IMODE(os.stat(self.at(node)).st_mode) for node in (1, 2)], [0o700, 0o755])
        os.chmod(self.src, 0o575)
        self.cast(self.src + "/", "3:" + self.dest)
        self.assertEqual(stat.S_IMODE(os.stat(self.at(3)).st_mode), 0o775)  # the owner can always write
        os.chmod(self.src, 0o700)

    def test_only_file_in_folder(self):
        """SRC/ has only one file, or only one of several sources exists: DEST is a folder nevertheless, and nothing beside it is
        deleted."""
        self.file("one/file", b"1")
        self.file("d1/precious", b"2")
        self.cast("--delete", os.path.join(self.here, "one") + "/", "1:" + self.at(1, "model"))
        self.assertEqual(sorted(os.listdir(self.at(1))), ["model", "precious"])
        self.assertEqual(os.listdir(self.at(1, "model")), ["file"])
        self.file("d1/model/old", b"3")
        self.cast("--delete", os.path.join(self.here, "one") + "/", "1:" + self.at(1, "model"))
        self.assertEqual(os.listdir(self.at(1, "model")), ["file"])
        said = self.cast(os.path.join(self.here, "one/file"), os.path.join(self.here, "missing"), "1:" + self.at(1, "two"), code=1)
        self.assertIn("1 of 1 host has all that could be sent", said.stderr)
        self.assertIn(f"not sent: {self.here}/missing: see the messages above", said.stderr)
        self.assertEqual(os.listdir(self.at(1, "two")), ["file"])

    def test_bwlimit(self):
        """At most so many bytes are sent a second. The test checks only that the cast takes long enough, which holds on slow machines,
        too."""
        path = self.file("a", b"x" * 3_000_000)
        begin = time.monotonic()
        self.cast("--bwlimit", "2M", path, "all:" + self.dest)
        self.assertGreater(time.monotonic() - begin, 0.9)

    def test_terminal(self):
        """With --progress a line a host is drawn; names of files cannot send anything to the terminal."""
        self.file("src/\x1b[31mred", b"1" * 3_000_000)
        os.mkfifo(os.path.join(self.src, "\x1b[32mpipe"))
        p = self.cast("--progress", "--bwlimit", "3M", self.src, "all:" + self.dest, code=1)
        self.assertRegex(p.stderr, r"% .* of 2\.\d MiB")
        self.assertNotIn("\x1b[3", p.stderr)

    def test_two_at_once(self):
        """Two casts to the same file do not write into one another."""
        path = self.file("a", random.Random(2).randbytes(4_000_000))
        runs = [subprocess.Popen([WEFT, "cast", "--bwlimit", "8M", path, "1:" + self.dest + "/"], env=self.env, stderr=subprocess.PIPE)
                for _ in range(2)]
        said = [p.communicate(timeout=LIMIT)[1] for p in runs]
        codes = sorted(p.returncode for p in runs)
        self.assertIn(codes, ([0, 1], [0, 0]), said)
        if codes == [0, 1]:
            self.assertIn(b"another weft cast", b"".join(said))
        with open(path, "rb") as a, open(self.at(1, "a"), "rb") as b:
            self.assertEqual(a.read(), b.read())


@unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
class Chain(Cast):
    """The hosts pass the files on in an order in which each has a cable to the next one."""

    @classmethod
    def start(cls):
        cls.env.pop("WEFT_TRANSPORT", None)  # as other tests of this file have it over an ordinary network
        lab = os.path.join(cls.tmp.name, "lab.json")
        cables = [(0, "en2", 2, "en2"), (2, "en3", 1, "en2"), (1, "en3", 3, "en2")]
        with open(lab, "w", encoding="utf-8") as f:
            json.dump({"hosts": [{"name": str(n), "devices": ["en2", "en3"]} for n in range(4)],
                       "cables": [{"from": f"{a}/{x}", "to": f"{b}/{y}"} for a, x, b, y in cables]}, f)
        subprocess.run([WEFT, "up", "--softverbs", lab], env=cls.env, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)

    def test_order(self):
        self.file("src/a", b"a" * 3_000_000)
        got = self.summary(self.src, "all:" + self.dest)
        self.assertEqual([(h["node"], h["link"]) for h in got["chain"]], [("2", "tb"), ("1", "tb"), ("3", "tb")])
        for node in (1, 2, 3):
            self.same(node)
        p = self.cast("--verbose", self.src, "all:" + self.dest)
        self.assertRegex(p.stderr, r"(?m)^weft cast: chain: \S+:0, \S+:2 \(tb\), \S+:1 \(tb\), \S+:3 \(tb\)$")


class Slow(Cast):
    def test_receiver(self):
        """A receiver is stopped: the other nodes wait for it. The source reads on only until the rings of all nodes are full."""
        rings = 4 * 8 * (17 << 16)  # bytes: CAST_SLOTS blocks of CAST_BLOCK bytes at each of four nodes
        size = 100_000_000
        self.file("src/big", random.Random(6).randbytes(size))
        p = subprocess.Popen([WEFT, "cast", "--json", "--bwlimit", "20M", self.src, "all:" + self.dest], env=self.env, stderr=subprocess.PIPE,
                             stdout=subprocess.PIPE)
        self.addCleanup(p.kill)
        until("it is under way", lambda: len(self.nodes_of_cast()) == 4 and self.bytes_read(0) > 2_000_000)
        nodes = self.nodes_of_cast()
        os.kill(nodes[3], signal.SIGSTOP)
        self.addCleanup(processes.go_on, nodes[3])
        at_stop = now = self.bytes_read(0)
        before = 0
        while now - before > 100_000:  # it also reads its pipes
            time.sleep(1)
            before, now = now, self.bytes_read(0)
        self.assertGreater(now, at_stop)
        self.assertLess(now - at_stop, rings + (2 << 20))
        self.assertLess(now, size)
        os.kill(nodes[3], signal.SIGCONT)
        said, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 0, err)
        got = json.loads(said)
        self.assertEqual((got["ok"], got["sent_bytes"], got["messages"]), (True, size, []))
        for node in (1, 2, 3):
            self.same(node)

    def bytes_read(self, rank):
        with open(f"/proc/{self.nodes_of_cast()[rank]}/io", encoding="ascii") as f:
            return int(f.readline().split()[1])


class Refused(Cast):
    def test_wrong_words(self):
        for words, said in ((["a"], "at least one SRC"), ([], "at least one SRC"), (["--bwlimit", "1023", "a", "b"], "from 1K on"),
                            (["--to", "1", "a", "2:b"], "the hosts are given twice"), (["--to", "", "a", "b"], "--to"), (["", "1:b"], "SRC is empty"),
                            (["a", "1:"], "DEST is empty"), (["a", ":b"], "there is no host before ':'"), (["--unknown", "a", "b"], "--unknown"), (["--as-node"], "is for weft's own use")):
            self.assertIn(said, self.cast(*words, code=2).stderr, words)
        one = self.file("one", b"1")
        self.assertIn("no host or node 'elsewhere'", self.cast(one, "elsewhere:/x", code=1).stderr)
        self.assertIn("No such file", self.cast(os.path.join(self.here, "none"), "1:" + self.dest, code=1).stderr)
        self.assertIn("not up", self.cast("--cluster", "other", one, "1:/x", code=1).stderr)
        self.file("x/one", b"2")
        self.assertIn("two sources have the name 'one'", self.cast(one, os.path.join(self.here, "x/one"), "1:" + self.dest, code=1).stderr)

    def test_devices_and_sockets(self):
        self.file("src/a", b"a")
        os.mkfifo(os.path.join(self.src, "pipe"))
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.join(self.src, "socket"))
        p = self.cast(self.src, "/proc/version", "all:" + self.dest, code=1)
        for what in ("src/pipe: is a device, a socket or a pipe", "src/socket: is a device, a socket or a pipe", "version: its size is unknown"):
            self.assertRegex(p.stderr, f"(?m){what}.*: not sent")
        for node in (1, 2, 3):
            self.assertEqual(os.listdir(self.at(node, "src")), ["a"])

    def test_devices_are_not_replaced(self):
        names = self.file("src/file", b"1"), os.path.join(self.src, "hard"), os.path.join(self.src, "link")
        os.link(names[0], names[1])
        os.symlink("file", names[2])
        for there in (self.at(1, "src", os.path.basename(name)) for name in names):
            shutil.rmtree(self.at(1), ignore_errors=True)
            os.makedirs(self.at(1, "src"))
            os.mkfifo(there)
            for what in ([self.src, "1:" + self.dest], [names[0], "1:" + there]):
                self.assertIn("cannot replace the device, socket or pipe of this name", self.cast(*what, code=1).stderr)
            self.assertTrue(stat.S_ISFIFO(os.lstat(there).st_mode), there)

    def test_directories_are_not_replaced(self):
        """A directory with the name of a file or a link stays, and the bytes of the file are not even sent."""
        names = self.file("src/file", b"1" * 1_000_000), os.path.join(self.src, "hard"), os.path.join(self.src, "link")
        os.link(self.file("src/another", b""), names[1])
        os.symlink("file", names[2])
        for name in names:
            os.makedirs(self.at(1, "src", os.path.basename(name)))
        p = self.cast("--json", self.src, "1:" + self.dest, code=1)
        for name in names:
            self.assertIn(f"src/{os.path.basename(name)}: cannot replace the directory of this name", p.stderr)
            self.assertTrue(os.path.isdir(self.at(1, "src", os.path.basename(name))))
        got = json.loads(p.stdout)
        self.assertEqual((got["sent_bytes"], got["hosts"][0]["complete"], got["not_sent"]), (0, False, []))
        self.no_parts()

    def test_links_out_of_dest(self):
        """A symbolic link below DEST is not followed, wherever it leads."""
        away = os.path.join(self.here, "away")
        os.makedirs(away)
        self.file("src/in/a", b"a")
        self.file("src/b", b"b")
        os.makedirs(self.at(1, "src"))
        os.symlink(away, self.at(1, "src", "in"))
        os.symlink(os.path.join(away, "b"), self.at(1, "src", "b"))  # this one is replaced
        p = self.cast(self.src, "all:" + self.dest, code=1)
        self.assertRegex(p.stderr, r":1: src/in: cannot make this directory, because a file or a symbolic link has its name")
        self.assertEqual(os.listdir(away), [])
        self.assertEqual(stat.S_IFMT(os.lstat(self.at(1, "src", "b")).st_mode), stat.S_IFREG)
        self.same(2)
        self.same(3)
        # Neither is one that has the name of the file that is being written: that one is removed.
        part = [f for f in self.part_of("b")]
        os.unlink(self.at(1, "src", "in"))
        os.unlink(self.at(1, "src", "b"))
        os.symlink(os.path.join(away, "b"), self.at(1, "src", part[0]))
        self.cast(self.src, "all:" + self.dest)
        self.assertEqual(os.listdir(away), [])
        self.same(1)

    def part_of(self, name):
        """The name of the temporary file of a file, which is left when a cast is ended in the middle."""
        path = self.file("probe/" + name, b"x" * 4_000_000)
        p = subprocess.Popen([WEFT, "cast", "--bwlimit", "1M", path, "1:" + self.dest + "/probe/"], env=self.env, stderr=subprocess.DEVNULL)
        until("it is being written", lambda: os.path.isdir(self.at(1, "probe")) and os.listdir(self.at(1, "probe")))
        p.send_signal(signal.SIGINT)
        p.wait(LIMIT)
        return os.listdir(self.at(1, "probe"))

    def test_parts_in_source(self):
        """An unfinished file in a source is not copied: it could have the name that another file has while it is written."""
        self.file("src/b", b"right")
        part = self.part_of("b")[0]
        path = self.file("src/" + part, b"wrong")
        self.cast(self.src, "2,3:" + self.dest)
        for node in (2, 3):
            self.assertEqual(os.listdir(self.at(node, "src")), ["b"])
            with open(self.at(node, "src", "b"), "rb") as f:
                self.assertEqual(f.read(), b"right")
        self.assertIn("unfinished file", self.cast(path, "2:" + self.dest, code=1).stderr)

    def test_unreadable_and_unwritable(self):
        if os.getuid() != 0:
            locked = self.file("src/locked", b"1", 0)
            self.file("src/open", b"2")
            os.makedirs(self.at(2, "src"))
            os.chmod(self.at(2), 0o500)
            self.addCleanup(os.chmod, self.at(2), 0o700)
            os.chmod(self.at(2, "src"), 0o500)
            del locked
        else:  # root may write everywhere: a folder that is a file stands for one that cannot be made
            os.mkfifo(os.path.join(self.here, "x"))
            self.file("src/open", b"2")
            self.file("d2", b"")
        p = self.cast(self.src, "all:" + self.dest, code=1)
        self.assertRegex(p.stderr, r"(?m)^weft cast: \S+:2: .*(Not a directory|Permission denied)")
        for node in (1, 3):
            self.assertTrue(os.path.exists(self.at(node, "src", "open")))

    @unittest.skipUnless(os.getuid() == 0 and os.path.exists("/bin/mount"), "only root may mount a file system")
    def test_mounted_below_dest(self):
        """A file system that is mounted in a folder of DEST: it is written to, and --delete does not touch one that was not copied."""
        for name in ("src/in/a", "src/in/b", "src/c"):
            self.file(name, name.encode())
        mounted = []
        try:
            for name in ("in", "old/other"):
                os.makedirs(self.at(1, "src", name))
                p = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.at(1, "src", name)], check=False, capture_output=True)
                if p.returncode:
                    self.skipTest("no file system may be mounted here")
                mounted.append(self.at(1, "src", name))
            for name in ("other/precious", "gone/x"):
                self.file("d1/src/old/" + name, b"1")
            p = self.cast("--delete", self.src, "1:" + self.dest)
            self.assertIn("src/old/other: not deleted, because another file system is mounted there", p.stdout)
            self.assertEqual((os.listdir(self.at(1, "src", "old")), os.listdir(mounted[1])), (["other"], ["precious"]))
            self.assertEqual(sorted(os.listdir(mounted[0])), ["a", "b"])
        finally:
            for name in mounted:
                subprocess.run(["umount", name], check=True)

    @unittest.skipUnless(os.getuid() == 0 and os.path.exists("/bin/mount"), "only root may mount a file system")
    def test_disk_full(self):
        os.makedirs(self.at(2))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", self.at(2)], check=False, capture_output=True)
        if mounted.returncode:
            self.skipTest("no file system may be mounted here")
        try:
            self.file("src/a", random.Random(3).randbytes(6_000_000))
            self.file("src/b", b"b")
            got = json.loads(self.cast("--json", self.src, "all:" + self.dest, code=1).stdout)
            self.assertRegex(got["messages"][0]["text"], "src/a: cannot write: No space left on device; nothing more is written on this host")
            self.assertEqual([(h["node"], h["complete"]) for h in got["hosts"]], [("1", True), ("2", False), ("3", True)])
            for node in (1, 3):
                self.same(node)
            self.assertFalse(os.path.exists(self.at(2, "src", "a")))
            subprocess.run(["mount", "-o", "remount,size=20m", self.at(2)], check=True)
            got = self.summary(self.src, "all:" + self.dest)
            self.same(2)
            self.assertLess(got["sent_bytes"], 6_000_000)  # what was there is used
        finally:
            subprocess.run(["umount", self.at(2)], check=True)


class Killed(Cast):
    """Any node, or the command, is killed at any moment: no file with wrong bytes gets its name, and the same command, given again,
    completes the copy."""

    def arrived(self, node):
        """Bytes of the files that are there now."""
        total = 0
        for folder, _, names in os.walk(self.at(node)):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:  # it has just got its name
                    pass
        return total

    def run_and_kill(self, rank, delay, *words, least=0):
        p = subprocess.Popen([WEFT, "cast", *words, self.src, "all:" + self.dest], env=self.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if rank == "command":
            time.sleep(delay)
            p.kill()
        else:
            def there():
                return self.nodes_of_cast().get(rank) or (p.poll() is not None and -1)
            pid = until("the node runs", there)
            time.sleep(delay)
            until("enough has arrived", lambda: p.poll() is not None or self.arrived(rank) >= least)
            if pid > 0:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        said = p.communicate(timeout=LIMIT)[1].decode()
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        return p.returncode, said

    def fill(self):
        rng = random.Random(5)
        for i in range(200):
            self.file(f"src/few/{i}", rng.randbytes(3000))
        self.file("src/big", rng.randbytes(12_000_000))

    def nothing_wrong(self):
        """Checks that all files with their own names are right."""
        right = tree(self.src)[0]
        for node in (1, 2, 3):
            if not os.path.isdir(self.at(node, "src")):
                continue
            for name, what in tree(self.at(node, "src"))[0].items():
                if what[0] == stat.S_IFREG and b".weft-cast-" not in name:
                    self.assertEqual(what[-2:], right[name][-2:], (node, name))

    def test_receiver(self):
        """A receiver dies: the chain leaves it out, and the other hosts get all files by the same command."""
        self.fill()
        for rank in (1, 2, 3):
            code, said = self.run_and_kill(rank, 0.1, "--bwlimit", "12M", least=3_000_000)
            self.assertEqual(code, 1, said)
            self.assertRegex(said, rf"weft cast: \S+:{rank} is gone; the other hosts still get the files")
            self.assertIn("2 of 3 hosts have all", said)
            self.nothing_wrong()
            for node in {1, 2, 3} - {rank}:
                self.same(node)
            got = self.summary(self.src, "all:" + self.dest)
            self.assertLess(got["sent_bytes"], 11_000_000)  # what had arrived is used
            self.same(rank)
            shutil.rmtree(self.at(1))
            shutil.rmtree(self.at(2))
            shutil.rmtree(self.at(3))

    def test_anything(self):
        self.fill()
        rng = random.Random(7)
        for turn in range(8):
            self.run_and_kill(rng.choice([0, 1, 2, 3, "command"]), rng.random() * 0.5, "--bwlimit", "16M")
            self.nothing_wrong()
            if turn % 3 == 2:
                shutil.rmtree(self.at(rng.choice([1, 2, 3])), ignore_errors=True)
        self.cast(self.src, "all:" + self.dest)
        for node in (1, 2, 3):
            self.same(node)
        self.no_parts()

    def test_interrupted(self):
        self.fill()
        p = subprocess.Popen([WEFT, "cast", "--bwlimit", "10M", self.src, "all:" + self.dest], env=self.env, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        until("it writes", lambda: any(f.startswith(".weft") for _, _, files in os.walk(self.here) for f in files))
        time.sleep(0.3)
        p.send_signal(signal.SIGINT)
        said = p.communicate(timeout=LIMIT)[1]
        self.assertEqual(p.returncode, 128 + signal.SIGINT, said)
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        self.nothing_wrong()
        got = self.summary(self.src, "all:" + self.dest)
        self.assertLess(got["sent_bytes"], 12_000_000)
        for node in (1, 2, 3):
            self.same(node)

    def test_source_is_stopped(self):
        """The host of the source ends its node: the command must not say that all is there."""
        self.fill()
        p = subprocess.Popen([WEFT, "cp", "--bwlimit", "10M", "2:" + self.src, "1,3:" + self.dest], env=self.env, stderr=subprocess.PIPE)
        until("it writes", lambda: any(f.startswith(".weft") for _, _, files in os.walk(self.here) for f in files))
        os.kill(self.nodes_of_cast()[1], signal.SIGTERM)
        said = p.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(p.returncode, 1, said)
        self.assertIn("the source was stopped", said)
        self.assertEqual([line for line in said.splitlines() if not line.startswith("weft cp: ")], [])
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        self.weft("cp", "2:" + self.src, "1,3:" + self.dest)
        self.same(1)
        self.same(3)

    def test_changing(self):
        """A file that changes while it is sent gets no name."""
        self.fill()
        path = os.path.join(self.src, "big")
        ended = threading.Event()

        def change():
            while not ended.is_set():
                with open(path, "r+b") as f:
                    f.write(os.urandom(8))
                time.sleep(0.01)
        thread = threading.Thread(target=change)
        thread.start()
        try:
            p = self.cast("--bwlimit", "24M", self.src, "all:" + self.dest, code=1)
        finally:
            ended.set()
            thread.join()
        self.assertIn("src/big: was changed while it was read: not sent", p.stderr)
        self.assertFalse(os.path.exists(self.at(1, "src", "big")))
        self.cast(self.src, "all:" + self.dest)
        for node in (1, 2, 3):
            self.same(node)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
