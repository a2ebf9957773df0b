#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A standing cluster with hosts that hang: signals, starts that are not answered, and input, of `weft exec`.

Usage: test_standing_stopped.py PATH-OF-WEFT CLUSTER [TEST...], as test_standing.py
"""
import concurrent.futures
import json
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from test_standing import LIMIT, Standing, until  # noqa: E402


class Stopped(Standing):
    """Nodes that are stopped, as those of a host that hangs: for a time they are taken for living ones."""

    def setUp(self):
        super().setUp()
        self.weft("up", "-n", "9")
        self.addCleanup(self.down)
        pids = [n["pid"] for n in self.status()["nodes"]]
        self.stopped = pids[1:8]
        self.addCleanup(lambda: [processes.go_on(pid) for pid in self.stopped])

    def stop(self):
        for pid in self.stopped:
            processes.stop(pid)

    def kills(self, job, count, also):
        """Whether `also` returns before the last of some commands in turn, each of which waits for one stopped node."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            turn = pool.submit(lambda: [self.weft("kill", "-s", "USR1", job) for _ in range(count)])
            also()
            first = not turn.done()
            turn.result()
        return first

    def test_a_signal_to_many(self):
        """A signal does not wait for one host after the other, however many do not answer."""
        one = self.exec("-d", "--on", "1", "--", "sleep", "618").stdout.strip()
        many = self.exec("-d", "--on", "1,2,3,4,5,6,7,8", "--", "sleep", "619").stdout.strip()
        p = self.start("exec", "--on", "1,2,3,4,5,6,7,8", "--", "sh", "-c", "trap 'echo end of 620; exit 0' INT; echo 620; while :; do sleep 0.1; done")
        for _ in range(8):
            self.assertEqual(p.stdout.readline(), b"620\n")
        self.stop()
        self.assertTrue(self.kills(one, 4, lambda: self.weft("kill", many)))
        p.send_signal(signal.SIGINT)
        self.assertTrue(self.kills(one, 3, lambda: self.assertEqual(p.stdout.readline(), b"end of 620\n")))
        for pid in self.stopped:
            processes.go_on(pid)
        self.assertEqual(p.communicate(timeout=LIMIT), (b"end of 620\n" * 7, b""))
        until("all have ended", lambda: not self.sleepers("618") and not self.sleepers("619"))

    def test_a_signal_before_the_start(self):
        """A signal to a program that has not started yet reaches it when it has."""
        self.stop()
        p = self.start("exec", "--on", "1", "--", "sleep", "621")
        job = until("it is listed", lambda: [j["job"] for j in json.loads(self.weft("ps", "--json").stdout)])[0]
        self.weft("kill", "-s", "TERM", str(job))
        self.assertEqual(self.sleepers("621"), [])
        for pid in self.stopped:
            processes.go_on(pid)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGTERM)


    CANCELLED = rb"weft exec: node 1 \([^)]+\) has not answered, so the start of the command there is cancelled; [^\n]+\n"

    def test_interrupted_at_the_start(self):
        """While a host hangs at the start, Ctrl-C reaches the programs of the other hosts, and the start on this one is cancelled."""
        self.stop()
        p = self.start("exec", "--on", "0,1,8", "--", "sh", "-c", "trap 'echo end; exit 3' INT; sleep 622 & wait")
        until("the others run", lambda: len(self.sleepers("622")) == 2)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, out), (255, b"end\n" * 2), err)
        self.assertRegex(err, rb"\A" + self.CANCELLED + rb"\Z")
        self.assertEqual(self.sleepers("622"), [])
        for pid in self.stopped:
            processes.go_on(pid)
        self.exec("--on", "1", "--", "true")
        until("nothing runs", lambda: not self.sleepers("622"))

    def test_interrupted_twice(self):
        """A second signal kills the programs, and ends the command even if a host hangs."""
        begun = self.start("exec", "--on", "0,1", "--", "sh", "-c", "trap '' INT; echo begun; while :; do sleep 0.1; done", "623")
        for _ in range(2):
            self.assertEqual(begun.stdout.readline(), b"begun\n")
        self.stop()
        starts = self.start("exec", "--on", "0,1", "--", "sh", "-c", "trap '' INT; while :; do sleep 0.1; done", "624")
        until("the other one runs", lambda: self.sleepers("624"))
        not_ended = rb"weft exec: node 1 \([^)]+\) has not ended process \d+, [^\n]+\n"
        for p, word, status, said in (starts, "624", 255, self.CANCELLED), (begun, "623", 128 + signal.SIGKILL, not_ended):
            here = self.sleepers(word)
            p.send_signal(signal.SIGINT)
            p.send_signal(signal.SIGTERM)
            out, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, out), (status, b""), err)
            self.assertRegex(err, rb"\A" + said + rb"\Z")
            until("the programs of the host that does not hang have ended", lambda: len(self.sleepers(word)) < len(here))
        for pid in self.stopped:
            processes.go_on(pid)
        until("all have ended", lambda: not self.sleepers("623") and not self.sleepers("624"))

    def test_killed(self):
        """The command is killed while a host hangs: its job does not wait for that host."""
        p = self.start("exec", "--on", "1", "--", "sleep", "626")
        until("it runs", lambda: self.sleepers("626"))
        self.stop()
        p.kill()
        p.communicate(timeout=LIMIT)
        until("no job is left", lambda: json.loads(self.weft("ps", "--json").stdout) == [])
        for pid in self.stopped:
            processes.go_on(pid)
        until("it has ended", lambda: not self.sleepers("626"))

    def test_interrupted_behind_many(self):
        """A host that hangs has no room for more requests: also then a signal is read at once."""
        self.stop()
        many = [self.start("exec", "--on", "1", "--env", "BIG=" + 3000 * "x", "--", "sleep", "625") for _ in range(100)]
        until("all are listed", lambda: len(json.loads(self.weft("ps", "--json").stdout)) == len(many))
        for p in reversed(many):
            p.send_signal(signal.SIGINT)
        for p in many:
            out, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, out), (255, b""), err)
            self.assertRegex(err, rb"\A" + self.CANCELLED + rb"\Z")
        for pid in self.stopped:
            processes.go_on(pid)
        self.exec("--on", "1", "--", "true")
        until("nothing runs", lambda: not self.sleepers("625"))

    def test_detached_and_interrupted(self):
        """A command that ends before it has printed the number of the job leaves nothing running."""
        self.stop()
        waits = self.start("exec", "-d", "--on", "1", "--", "sleep", "626")
        p = self.start("exec", "-d", "--on", "0,1", "--", "sleep", "626")
        until("the other one runs", lambda: self.sleepers("626"))
        p.send_signal(signal.SIGINT)
        self.assertEqual((p.communicate(timeout=LIMIT), p.returncode), ((b"", b""), -signal.SIGINT))
        until("it has ended", lambda: not self.sleepers("626"))
        self.assertIsNone(waits.poll())  # its time to start is not over
        waits.kill()
        waits.communicate()

    def test_input_and_a_late_start(self):
        """Input waits until the program has started on all hosts."""
        self.stop()
        p = self.start("exec", "--on", "0,1", "--stdin", "-", "--", "sh", "-c", "cat; exit 0", "627", stdin=subprocess.PIPE)
        p.stdin.write(b"given\n")
        p.stdin.flush()
        until("the other one runs", lambda: self.sleepers("627"))
        for pid in self.stopped:
            processes.go_on(pid)
        self.assertEqual((p.communicate(timeout=LIMIT), p.returncode), ((b"given\n" * 2, b""), 0))


class Deadline(Standing):
    def test_no_answer(self):
        """A host that hangs at the start, and nobody interrupts it: after the deadline an error says which node it is."""
        self.weft("up", "-n", "3", env={**self.env, "WEFT_DEADLINE": "1s"})
        self.addCleanup(self.down)
        node = self.node_beside()
        processes.stop(node["pid"])
        self.addCleanup(processes.go_on, node["pid"])
        p = self.exec("--on", str(node["node"]), "--", "true", code=255)
        self.assertRegex(p.stderr, rf"\Aweft exec: service 'process' of node {node['node']}: no answer before the deadline, [^\n]+\n\Z")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
