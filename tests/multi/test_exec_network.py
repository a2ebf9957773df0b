#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft exec over an ordinary network (the ofi transport): a standing cluster with a node in each of four network namespaces. What test_standing.py
tries on one host in all its forms is tried here as far as bytes, statuses and signals cross the network.

Usage: over_network.py tcp python3 test_exec_network.py PATH-OF-WEFT network [TEST...]
"""
import json
import os
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
from cast_test import HOSTS, LIMIT, MARK, WEFT, Cast, environ, until  # noqa: E402
from processes import alive  # noqa: E402

OTHERS = range(1, len(HOSTS))


class Network(Cast):
    def exec(self, *args, **more):
        return self.weft("exec", *args, **more)

    def begin(self, *args):
        return subprocess.Popen([WEFT, "exec", *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a shell's background jobs ignore it

    def sleepers(self, seconds):
        """Processes of this test that sleep for so long."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    ours = f.read().split(b"\0")[:2] == [b"sleep", seconds.encode()]
            except OSError:
                continue
            if ours and f"MARK={MARK}".encode() in environ(pid) and alive(int(pid)):
                found.append(int(pid))
        return found


class Exec(Network):
    def test_each_on_its_host(self):
        """All links are TCP's, and a program has the network of the host that it was started for."""
        links = json.loads(self.weft("status", "--json").stdout)["links"]
        self.assertEqual({l["transport"] for l in links}, {"ofi"})
        p = self.exec("--json", "--", "readlink", "/proc/self/ns/net")
        events = [json.loads(line) for line in p.stdout.splitlines()]
        got = {e["node"]: e["text"].strip() for e in events if e["event"] == "output"}
        self.assertEqual(got, {i: f"net:[{os.stat(host).st_ino}]" for i, host in enumerate(HOSTS)})

    def test_output_and_status(self):
        p = self.exec("--on", "2", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
        self.assertEqual((p.stdout, p.stderr), ("out\n", "err\n"))
        p = self.exec("--", "sh", "-c", "echo a; printf b")
        self.assertEqual((p.stdout.count("a\n"), p.stdout.count("b")), (len(HOSTS), len(HOSTS)))
        self.exec("--on", "3", "--", "sh", "-c", "kill -9 $$", code=128 + 9)
        self.exec("--timeout", "300ms", "--", "sleep", "1001", code=124)
        self.assertEqual(self.sleepers("1001"), [])
        self.assertIn("no-such-program", self.exec("--on", "1", "--", "no-such-program", code=127).stderr)

    def test_words(self):
        """A megabyte of environment, and arguments with every byte but zero."""
        odd = [bytes(range(1, 256)), b"", b" ", b"\xff\xfe", b"two\nlines"]
        p = subprocess.run([WEFT, "exec", "--on", "1", "--", "printf", r"%s\0", *odd], env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=LIMIT, check=True)
        self.assertEqual(p.stdout, b"".join(word + b"\0" for word in odd))
        changes = [f"BIG{i}={chr(97 + i) * 100_000}" for i in range(11)]
        p = self.exec("--on", "3", *(x for c in changes for x in ("--env", c)), "--", "env")
        for change in changes:
            self.assertIn(change + "\n", p.stdout)

    def test_binary(self):
        """Bytes arrive unchanged: as output of one host, and as input of three, which send them back."""
        path, out = os.path.join(self.here, "big"), os.path.join(self.here, "out")
        with open(path, "wb") as f:
            f.write(os.urandom(20_000_001))
        with open(out, "wb") as f:
            subprocess.run([WEFT, "exec", "--on", "2", "--stdin", path, "--", "cat"], env=self.env, stdout=f, check=True, timeout=LIMIT)
        subprocess.run(["cmp", path, out], check=True)
        with open(path, "rb") as f:
            want = subprocess.run(["md5sum"], stdin=f, capture_output=True, text=True, check=True).stdout
        on = ",".join(map(str, OTHERS))
        self.assertEqual(self.exec("--on", on, "--stdin", path, "--", "md5sum").stdout, want * len(OTHERS))

    def test_killed(self):
        """The command is killed, or interrupted: nothing that it has started goes on, on any host."""
        stubborn = ["sh", "-c", "sleep 1002 & trap '' TERM INT; sleep 1002"]
        for number, words, each in ((signal.SIGKILL, stubborn, 2), (signal.SIGINT, ["sleep", "1002"], 1)):
            p = self.begin("--", *words)
            until("all run", lambda each=each: len(self.sleepers("1002")) == each * len(HOSTS))
            p.send_signal(number)
            until("all have ended", lambda: not self.sleepers("1002"))
            p.communicate(timeout=LIMIT)
            self.assertNotEqual(p.returncode, 0)

    def test_detached(self):
        job = self.exec("-d", "--", "sh", "-c", "echo begun; sleep 1003").stdout.strip()
        until("all have said so", lambda: self.weft("logs", job).stdout.count("begun\n") == len(HOSTS))
        self.weft("kill", job)
        def ended():
            listed = [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]
            return listed["state"] == "ended" and listed["tasks"]
        self.assertEqual([t["status"] for t in until("the job has ended", ended)], [128 + 15] * len(HOSTS))
        self.assertEqual(self.sleepers("1003"), [])


class Dies(Network):
    """The node of a host is killed. A cluster of its own: nothing here starts the node again."""

    def test_node_dies(self):
        p = self.begin("--", "sh", "-c", "sleep 1004; echo not reached")
        until("all run", lambda: len(self.sleepers("1004")) == len(HOSTS))
        nodes = json.loads(self.weft("status", "--json").stdout)["nodes"]
        os.kill(nodes[-1]["pid"], signal.SIGKILL)
        until("what it has started has ended", lambda: len(self.sleepers("1004")) == len(HOSTS) - 1)
        got = self.exec("--on", "1,2", "--", "echo", "others go on")
        self.assertEqual(got.stdout, "others go on\n" * 2)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=LIMIT)
        self.assertRegex(os.fsdecode(err), r"node 3\b|:3\b")
        self.assertEqual(self.sleepers("1004"), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
