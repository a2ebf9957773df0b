# SPDX-License-Identifier: MIT
"""What `weft cast` shows to people: progress on a terminal, hosts that do not answer, what was not sent, special modes. Called as
test_cast.py."""
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import unittest
import urllib.parse

import processes
from cast_test import LIMIT, WEFT, Cast, until


class Terminal:
    """A command whose standard error is a terminal; what it has printed so far is read while it runs."""

    def __init__(self, case, *words):
        self.ours, theirs = pty.openpty()
        self.p = subprocess.Popen([WEFT, *words], env=case.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        case.addCleanup(os.close, self.ours)
        case.addCleanup(self.p.wait)
        case.addCleanup(self.p.kill)
        self.said = ""

    def read(self):
        """Reads what is there. False: the command has ended."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                got = os.read(self.ours, 65536)
            except OSError:  # nobody has the terminal open any more
                return False
            if not got:
                return False
            self.said += got.decode(errors="replace")
        return True

    def end(self):
        until("it ends", lambda: not self.read())
        return self.p.wait(LIMIT)

    def screen(self):
        """The lines that a user sees now, on a terminal of any width and height."""
        lines, row, column = [""], 0, 0
        for word in re.findall(r"\x1b\[[KA]|[\r\n]|[^\x1b\r\n]+", self.said):
            if word == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif word == "\x1b[A":
                row = max(row - 1, 0)
            elif word == "\r":
                column = 0
            elif word == "\x1b[K":
                lines[row] = lines[row][:column]
            else:
                lines[row] = lines[row][:column].ljust(column) + word + lines[row][column + len(word):]
                column += len(word)
        return lines

    def draws(self):
        """Waits until the lines were drawn twice."""
        before = len(self.percentages())
        until("the lines are drawn", lambda: self.read() and len(self.percentages()) >= before + 2)

    def percentages(self):
        return [int(n) for n in re.findall(r"(\d+)%  ", self.said)]

    def bytes_of(self, node):
        """What the lines of a host have said that it has."""
        return [text for n, text in re.findall(r"  \S+?:(\d) +([\d.]+ \w*B) +[\d.]+ \w*B/s", self.said) if int(n) == node]


class Shown(Cast):
    def stop(self, rank):
        """Stops a node of the cast that runs now. Returns what lets it go on."""
        pid = until(f"node {rank} runs", lambda: self.nodes_of_cast().get(rank))
        os.kill(pid, signal.SIGSTOP)

        def go_on():
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        self.addCleanup(go_on)
        return go_on

    def writes(self, node):
        """Waits until a node has bytes of an unfinished file."""
        def some():
            try:
                return any(f.startswith(".weft-cast-") and os.path.getsize(self.at(node, f)) for f in os.listdir(self.at(node)))
            except FileNotFoundError:
                return False
        until(f"node {node} writes", some)

    def test_one_large_file(self):
        """The bytes of a file count as they arrive, not when the file is complete."""
        path = self.file("a", random.Random(1).randbytes(12_000_000))
        t = Terminal(self, "cast", "--bwlimit", "6M", path, "all:" + self.dest + "/")
        self.assertEqual(t.end(), 0, t.said)
        seen = sorted({n for n in t.percentages() if 0 < n < 100})
        self.assertGreaterEqual(len(seen), 3, t.said)
        self.assertEqual(t.percentages(), sorted(t.percentages()))
        for node in (1, 2, 3):
            self.assertGreaterEqual(len(set(t.bytes_of(node))), 4, t.said)
        self.assertRegex(t.said, r"of 11\.4 MiB, 1 file, \d+ s")
        self.assertRegex(t.said, r"weft cast: 1 file, 11\.4 MiB; 11\.4 MiB sent, 0 B of that a second time; 3 of 3 hosts have all; ")

    def test_continued(self):
        """Bytes of an earlier cast count at once; a host that lacks the most sets the percentage."""
        path = self.file("a", random.Random(2).randbytes(12_000_000))
        p = subprocess.Popen([WEFT, "cast", "--bwlimit", "8M", path, "all:" + self.dest + "/"], env=self.env, stderr=subprocess.DEVNULL)

        def half():
            return all(os.path.isdir(self.at(node)) and sum(os.path.getsize(self.at(node, f)) for f in os.listdir(self.at(node))) > 6_000_000
                       for node in (1, 2, 3))
        until("half of it is there", half)
        p.send_signal(signal.SIGINT)
        p.wait(LIMIT)
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        t = Terminal(self, "cast", "--bwlimit", "2M", path, "all:" + self.dest + "/")
        self.assertEqual(t.end(), 0, t.said)
        first = [n for n in t.percentages() if n][0]
        self.assertGreaterEqual(first, 45, t.said)
        self.assertLess(first, 100, t.said)

    def test_silent_on_a_terminal(self):
        """The line of a host that does not answer says so, also if the last word of that host was a good one."""
        path = self.file("a", random.Random(3).randbytes(6_000_000))
        t = Terminal(self, "cast", "--bwlimit", "3M", path, "all:" + self.dest + "/")
        self.writes(2)
        go_on = self.stop(2)
        until("the line says so", lambda: t.read() and re.search(r":2 +[\d.]+ \w+ +[\d.]+ \w+/s  no answer for ([3-9]|\d\d+) s", t.said))
        until("it counts", lambda: t.read() and re.search(r":2 .*no answer for ([5-9]|\d\d+) s", t.said))
        self.assertNotRegex(t.said, r":[13] +[\d.]+ \w+ +[\d.]+ \w+/s  no answer")
        go_on()
        self.assertEqual(t.end(), 0, t.said)
        self.assertRegex(t.said, "3 of 3 hosts have all; ")

    def test_silent(self):
        """Without a terminal, one message tells which host does not answer, and one that it answers again; the source, too."""
        path = self.file("a", random.Random(4).randbytes(6_000_000))
        name = os.path.join(self.here, "said")
        with open(name, "wb") as said:
            p = subprocess.Popen([WEFT, "cp", "--bwlimit", "3M", "1:" + path, "2,3:" + self.dest + "/"], env=self.env, stderr=said)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)

        def text():
            with open(name, encoding="utf-8") as f:
                return f.read()
        self.writes(2)
        source, target = self.stop(1), self.stop(3)
        until("both are named", lambda: text().count("no answer for ") == 2)
        self.assertRegex(text(), r"weft cp: \S+:1: no answer for [1-9]\d+ s, and the copy waits for it; .*--as-node.*\(kill -KILL\); Ctrl-C ends")
        self.assertRegex(text(), r"weft cp: \S+:3: no answer for [1-9]\d+ s, and the copy waits for it; .*and the others go on without it; Ctrl-C ends")
        time.sleep(1)
        source()
        target()
        self.assertEqual(p.wait(LIMIT), 0, text())
        self.assertEqual(text().count("no answer"), 2, text())
        for node in (1, 3):
            self.assertRegex(text(), rf"weft cp: \S+:{node}: answers again, after [1-9]\d+ s\n")
        with open(path, "rb") as a, open(self.at(3, "a"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_the_first_node_is_stopped(self):
        """Node 0 prints all messages: if it is stopped, the command itself tells so."""
        path = self.file("a", random.Random(5).randbytes(6_000_000))
        p = subprocess.Popen([WEFT, "cast", "--bwlimit", "3M", path, "all:" + self.dest + "/"], env=self.env, stderr=subprocess.PIPE)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        self.writes(2)
        go_on = self.stop(0)
        line = p.stderr.readline().decode()
        self.assertRegex(line, r"weft cast: no answer for [1-9]\d+ s from node 0 \(pid \d+\) on this host, because it is stopped, .*\(kill -CONT \d+\)")
        go_on()
        rest = p.communicate(timeout=LIMIT)[1].decode()
        self.assertEqual(p.returncode, 0, rest)
        self.assertRegex(rest, r"weft cast: node 0 \(pid \d+\) on this host is continued: it was stopped for [1-9]\d+ s\n")
        self.assertNotIn("no answer", rest)  # the other hosts were not silent: nobody listened

    def test_the_launcher_prints(self):
        """What the launcher prints between the lines of the progress stays on the terminal: a node that was killed, and a stopped node 0."""
        path = self.file("a", random.Random(6).randbytes(30_000_000))
        t = Terminal(self, "cast", "--bwlimit", "1M", path, "all:" + self.dest + "/")
        self.writes(2)
        t.draws()
        os.kill(self.nodes_of_cast()[3], signal.SIGKILL)
        until("the launcher says so", lambda: t.read() and "was killed by SIGKILL" in t.said)
        t.draws()
        self.assertRegex("\n".join(t.screen()), r"(?m)^weft cast: node 3 .* was killed by SIGKILL$")
        go_on = self.stop(0)
        until("the launcher says so", lambda: t.read() and "because it is stopped" in t.said)
        go_on()
        t.draws()
        shown = "\n".join(t.screen())
        self.assertRegex(shown, r"(?m)^weft cast: node 3 .* was killed by SIGKILL$")
        self.assertRegex(shown, r"(?m)^weft cast: no answer for \d+ s from node 0 .* by Ctrl-C$")
        t.p.send_signal(signal.SIGINT)
        t.end()

    def test_a_node_does_not_answer(self):
        """`all` includes a node that lives but is silent: it is asked again, and if that does not help, the command says so and fails."""
        self.file("src/a", b"1")
        pid = [n["pid"] for n in json.loads(self.weft("status", "--json").stdout)["nodes"] if n["node"] == 3][0]
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(processes.go_on, pid)
        self.assertEqual(len(self.summary(self.src, "1,2:" + self.dest)["hosts"]), 2)  # it is not needed
        p = self.cast("--json", self.src, "all:" + self.dest, code=1)
        got = json.loads(p.stdout)
        self.assertEqual((got["ok"], [h["complete"] for h in got["hosts"]]), (False, [True] * 2))
        self.assertRegex(p.stderr, r"weft cast: '\S+' is left out, because its node \(3\) does not answer: see `weft status`\n")
        self.same(1)
        self.same(2)
        p = subprocess.Popen([WEFT, "cast", "--json", self.src, "all:" + self.dest], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)  # whether it has asked or not: it waits for the node
        os.kill(pid, signal.SIGCONT)
        said, err = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, err), (0, b""))
        self.assertEqual([h["complete"] for h in json.loads(said)["hosts"]], [True] * 3)
        self.same(3)

    def test_not_sent(self):
        """What cannot be sent is named at the end. The hosts have all that can be sent; the exit status says that this is not all."""
        self.file("src/a", b"1")
        for i in range(5):
            os.mkfifo(os.path.join(self.src, f"pipe{i}"))
        said = self.cast(self.src, "1,2:" + self.dest, code=1).stderr
        self.assertRegex(said, r"weft cast: 1 file, 1 B; 1 B sent, 0 B of that a second time; 2 of 2 hosts have all that could be sent; ")
        names = [os.path.join(self.src, f"pipe{i}") for i in range(3)]
        self.assertIn(f"weft cast: not sent: {', '.join(names)} and 2 more: see the messages above\n", said)
        got = json.loads(self.cast("--json", self.src, "1,2:" + self.dest, code=1).stdout)
        self.assertEqual([(h["complete"], h["has_all_sent"]) for h in got["hosts"]], [(False, True)] * 2)
        self.assertEqual(got["not_sent"], [os.path.join(self.src, f"pipe{i}") for i in range(5)])
        # A host that lacks a file has not all that could be sent.
        os.makedirs(self.at(2, "src", "b"))
        self.file("src/b", b"2")
        said = self.cast(self.src, "1,2:" + self.dest, code=1).stderr
        self.assertIn("; 1 of 2 hosts have all that could be sent; ", said)

    def test_full_output(self):
        """A summary that cannot be written is an error, and is said."""
        self.file("src/a", b"1")
        with open("/dev/full", "wb") as full:
            p = subprocess.run([WEFT, "cast", "--json", self.src, "1:" + self.dest], env=self.env, stdin=subprocess.DEVNULL, stdout=full,
                               stderr=subprocess.PIPE, timeout=LIMIT, check=False)
        self.assertEqual((p.returncode, p.stderr), (1, b"weft cast: cannot write to standard output: No space left on device\n"))
        self.same(1)

    def test_source_vanishes(self):
        """Files that vanish while others are sent: they are named by their paths on the source, and leave nothing behind."""
        self.file("src/a", os.urandom(8_000_000))
        for i in range(20):
            self.file(f"src/b/{i}", b"%d" % i)
        p = subprocess.Popen([WEFT, "cast", "--json", "--bwlimit", "2M", self.src, "1,2:" + self.dest], env=self.env, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
        part = self.at(2, "src")
        until("it is under way", lambda: os.path.isdir(part) and any(f.endswith(".part") for f in os.listdir(part)))
        shutil.rmtree(os.path.join(self.src, "b"))
        got = json.loads(p.communicate(timeout=LIMIT)[0])
        self.assertEqual((p.returncode, [h["has_all_sent"] for h in got["hosts"]]), (1, [True] * 2))
        self.assertEqual(sorted(got["not_sent"]), sorted(os.path.join(self.src, "b", str(i)) for i in range(20)))
        self.no_parts()
        self.assertEqual(sorted(os.listdir(self.at(1, "src", "b"))), [])

    def test_not_sent_as_json(self):
        """Names that are no text arrive in JSON, too: readable, and encoded without any loss."""
        self.file("src/a", b"1")
        long = "/".join(["d" * 200] * 12)
        os.makedirs(os.path.join(self.src, long))
        names = [b"no text \xff\xfe", b"half of a \xc3", b"\xe2\x82 one \xe2\x82\xac", b"two\nlines 100%", "h\u00e4user".encode(), os.fsencode(long + "/pipe")]
        for name in names:
            os.mkfifo(os.path.join(os.fsencode(self.src), name))
        p = self.cast("--json", self.src, "1,2:" + self.dest, code=1)
        got = json.loads(p.stdout)
        root = os.fsencode(self.src) + b"/"
        self.assertEqual({urllib.parse.unquote_to_bytes(path) for path in got["not_sent_encoded"]}, {root + name for name in names})
        for path in got["not_sent_encoded"]:
            self.assertRegex(path, "^([A-Za-z0-9._~/-]|%[0-9A-F]{2})*$")
        self.assertEqual([urllib.parse.unquote_to_bytes(path).decode(errors="replace").count("\ufffd") > 0 for path in got["not_sent_encoded"]],
                         ["\ufffd" in path for path in got["not_sent"]])
        self.assertEqual({path[len(root):] for path in got["not_sent"]} - {"half of a \ufffd", "no text \ufffd\ufffd"},
                         {"\ufffd\ufffd one \u20ac", "two\nlines 100%", "h\u00e4user", long + "/pipe"})
        # The messages have them, too.
        self.assertEqual(len([m for m in got["messages"] if m["failure"]]), len(names), got["messages"])
        self.assertTrue(all(m["text"] for m in got["messages"]))

    def test_special_modes(self):
        """One line counts what has lost its set-user-ID or set-group-ID bit."""
        path = self.file("src/program", b"1")
        self.assertNotIn("set-user-ID", self.cast(self.src, "1:" + self.dest).stderr)
        os.chmod(path, 0o4755)
        self.assertIn("weft cast: 1 file or directory has a set-user-ID or set-group-ID bit, which its copies do not have\n",
                      self.cast(self.src, "1:" + self.dest).stderr)
        os.chmod(self.src, 0o2755)
        self.file("src/sticky", b"1", mode=stat.S_ISVTX | 0o644)
        os.link(path, os.path.join(self.src, "same program"))
        self.assertIn("weft cast: 2 files or directories have set-user-ID or set-group-ID bits, which their copies do not have\n",
                      self.cast(self.src, "1:" + self.dest).stderr)
        self.assertEqual(self.summary(self.src, "1:" + self.dest)["special_modes_not_copied"], 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
