#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A standing cluster whose processes are killed: what ends, what goes on, and that nodes come back.

Usage: test_standing_returns.py PATH-OF-WEFT CLUSTER [TEST...], as test_standing.py. WEFT_TEST_KILLS: how many nodes are killed while maps run.
"""
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from test_standing import CLUSTER, LIMIT, WEFT, Standing, marked, until  # noqa: E402


class Killed(Standing):
    def test_the_node_that_runs_it(self):
        self.up()
        victim = self.node_beside()
        p = self.start("exec", "--on", str(victim["node"]), "--", "sleep", "611")
        job = self.exec("-d", "--on", str(victim["node"]), "--", "sleep", "616").stdout.strip()
        until("both run", lambda: self.sleepers("611") and self.sleepers("616"))
        os.kill(victim["pid"], signal.SIGKILL)
        _, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 255, err)
        self.assertIn(b"node %d" % victim["node"], err)
        until("its processes have ended", lambda: not self.sleepers("611") and not self.sleepers("616"))
        until("the job has ended", lambda: re.search(rf"(?m)^ *{job} +{victim['node']} +\d+ +node gone", self.weft("ps").stdout))

    def test_it_is_stopped(self):
        """If the control node does not answer, commands say so, and `weft down` ends the nodes of this host nevertheless."""
        self.up()
        nodes = [n["pid"] for n in self.status()["nodes"]]
        job = self.exec("-d", "--", "sleep", "618").stdout.strip()
        waits = [self.start("exec", "--", "sleep", "619"), self.start("logs", "--follow", job), self.start("proxy", "--listen", "127.0.0.1:0"),
                 self.start("publish", "--to", ":9", "127.0.0.1:0"), self.start("proxy", "--", "sleep", "24")]
        until("it runs", lambda: len(self.sleepers("619")) == 3 and len(self.status()["forwards"]) == 3)
        two = [self.start("exec", "--", "sleep", "619")]
        until("it runs, too", lambda: len(self.sleepers("619")) == 6)
        processes.stop(self.control_pid())
        two.append(self.start("exec", "--", "sleep", "619"))
        until("it catches both signals, SIGTERM as the second", lambda: processes.catches(two[1].pid, signal.SIGTERM))
        for p in two:  # the second signal ends these commands before the others have noticed anything
            p.send_signal(signal.SIGINT)
            p.send_signal(signal.SIGTERM)
        for p in two:
            _, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, waits[0].poll()), (255, None))
            self.assertIn(b"the node of the cluster that serves this host does not answer", err)
        self.assertIn("the node of the cluster that serves this host does not answer", self.weft("status", code=1).stderr)
        for p, status in zip(waits, (255, 1, 1, 1, 0)):  # the last one goes on without its proxy
            _, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, err.count(b"the node of the cluster that serves this host does not answer")), (status, 1), err)
        with contextlib.ExitStack() as held:  # the queue of connections is full: connecting would wait for ever
            for _ in range(1000):
                one = held.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                try:
                    one.connect(self.path("control"))
                except BlockingIOError:
                    break
            else:
                self.fail("the queue of connections is never full")
            err = self.weft("down", code=1).stderr
        self.assertIn("the node of the cluster that serves this host does not answer", err)
        until("all have ended", lambda: not [pid for pid in nodes if processes.alive(pid)])
        self.assertIn("is not up", self.weft("status", code=1).stderr)

    def test_silent_nodes(self):
        """Nodes that do not answer are shown as silent, and the status is printed nevertheless."""
        self.up()
        got = self.status()
        others = [n for n in got["nodes"] if n["node"] != got["control_node"]]
        for n in others:
            processes.stop(n["pid"])
            self.addCleanup(processes.go_on, n["pid"])
        states = {n["node"]: n["state"] for n in self.status()["nodes"]}
        self.assertEqual(states, {n["node"]: "silent" if n in others else "up" for n in got["nodes"]})
        for n in others:
            processes.go_on(n["pid"])
        until("they answer again", lambda: {n["state"] for n in self.status()["nodes"]} == {"up"})

    def test_the_control_node(self):
        """The control node is killed: its jobs end with it. The other nodes go on, and one of them becomes the control node."""
        self.up()
        p = self.start("exec", "--", "sh", "-c", "trap '' TERM; sleep 612; sleep 612")
        job = self.exec("-d", "--", "sleep", "613").stdout.strip()
        until("all run", lambda: len(self.sleepers("612")) == 3 and len(self.sleepers("613")) == 3)
        before = self.status()
        launcher, control = self.launcher(), self.control_pid()
        processes.stop(launcher)  # so that it is one of the others, and not the one that comes back
        self.addCleanup(processes.go_on, launcher)
        os.kill(control, signal.SIGKILL)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 255)
        until("the processes of its jobs have ended", lambda: not self.sleepers("612") and not self.sleepers("613"))
        after = self.status()
        self.assertIn(after["control_node"], {0, 1, 2} - {before["control_node"]})
        os.kill(launcher, signal.SIGCONT)
        self.assertIn("there is no job", self.weft("kill", job, code=1).stderr)
        self.assertNotEqual(self.exec("-d", "--", "true").stdout.strip(), job)
        self.all_up()
        self.assertEqual(self.exec("--", "echo", "x").stdout, "x\n" * 3)

    def test_the_launcher(self):
        """A launcher is killed: the nodes of its host end, with all that they ran; then the cluster can be started again."""
        self.up()
        p = self.start("exec", "--", "sh", "-c", "trap '' TERM; sleep 612; sleep 612")
        self.exec("-d", "--", "sleep", "613")
        until("all run", lambda: len(self.sleepers("612")) == 3 and len(self.sleepers("613")) == 3)
        os.kill(self.launcher(), signal.SIGKILL)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 255)
        until("no process is left", lambda: not marked())
        self.assertIn("is not up", self.weft("status", code=1).stderr)
        self.weft("up", *CLUSTER)
        self.exec("--", "true")


class Map:
    """A `weft map` of this test's cluster, which copies a file and takes a while; its output is read as it comes."""

    def __init__(self, test, path):
        self.process = test.start("map", "--cluster", "default", "--block", "20K", path, "--", "sh", "-c", "sleep 0.1; exec cat")
        self.out, self.err = [], []
        self.readers = [threading.Thread(target=self.read, args=pipe) for pipe in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def read(pipe, into):
        while piece := pipe.read1(1 << 16):
            into.append(piece)

    def finished(self):
        return self.process.poll() is not None

    def wait_for_bytes(self):
        until("the map runs", lambda: self.out or self.finished())

    def result(self):
        status = self.process.wait(LIMIT)
        for reader in self.readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status, b"".join(self.out), b"".join(self.err)


class Kills(Standing):
    """Kills nodes, and waits until another node is at the same place."""

    def kill(self, place):
        """Kill the node at a place; until another one is there. Returns its number."""
        before = self.at(place)
        killed = time.monotonic()
        os.kill(before["pid"], signal.SIGKILL)
        self.wait_gone(before, killed)
        until("another node is at its place", lambda: self.at(place)["state"] == "up" and self.at(place)["node"] != before["node"])
        self.back.append(time.monotonic() - killed)
        after = self.at(place)
        self.assertGreater(after["node"], max(self.numbers))
        self.numbers.add(after["node"])
        self.assertEqual(self.exec("--on", str(after["node"]), "--", "echo", "back").stdout, "back\n")
        said = self.exec("--on", str(before["node"]), "--", "true", code=255).stderr
        self.assertRegex(said, f"node {before['node']} is dead: .*; `weft status` lists the nodes that are up")
        return after["node"]

    def wait_gone(self, before, killed):
        """Until the status does not show it as up any more; a line with the time is printed, since a limit would be one on this machine."""
        until("the status shows that it is gone", lambda: not any(n["node"] == before["node"] and n["state"] == "up" for n in self.status()["nodes"]))
        self.seen.append(time.monotonic() - killed)

    def up(self, *args):
        super().up(*args)
        self.numbers, self.seen, self.back = {0, 1, 2}, [], []


class Returns(Kills):
    """Nodes that die come back, under new numbers."""

    def test_each_in_turn(self):
        self.up()
        for place in (0, 1, 2):
            self.kill(place)
        got = self.status()
        self.assertEqual([(n["state"], n["place"]) for n in sorted(got["nodes"], key=lambda n: n["place"])], [("up", k) for k in range(3)])
        self.assertEqual(got["numbers"], 6)
        until("all links are shown", lambda: {(l["from"], l["to"]) for l in self.status()["links"]} ==
              {(a, b) for a in (3, 4, 5) for b in (3, 4, 5) if a != b})
        self.assertIn("weft_node_numbers_used 6\n", self.weft("status", "--metrics").stdout)
        self.assertEqual(self.exec("--", "echo", "x").stdout, "x\n" * 3)
        p = self.weft("run", "--cluster", "default", "-t", "--", "sh", "-c", "echo $WEFT_RANK of $WEFT_SIZE $WEFT_GROW$WEFT_JOIN")
        self.assertEqual(sorted(p.stdout.splitlines()), [f"[{k}] {k} of 3" for k in range(3)])

    def test_the_control_node_leaves(self):
        """The control node is ended by a signal: it leaves the cluster, another node is started in its place, and the cluster goes on."""
        self.up()
        before = self.control()
        os.kill(before["pid"], signal.SIGTERM)
        until("another node is at its place", lambda: self.at(before["place"])["state"] == "up" and self.at(before["place"])["node"] == 3)
        self.all_up()

    def test_two_at_once(self):
        self.up()
        pids = [self.at(place)["pid"] for place in (0, 2)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.all_up()
        self.assertFalse(set(pids) & {n["pid"] for n in self.status()["nodes"]})
        self.assertEqual(self.status()["numbers"], 5)

    def test_it_dies_again_and_again(self):
        """A node dies again and again: each time weft waits longer before it starts it again, because each start uses up a number.

        The log says how long each node lived. On a busy machine that may be more than the 2 s from which on weft waits less again."""
        self.up()
        for _ in range(4):
            self.kill(1)
        log = re.findall(r"the node at place 1 of this host .* after ([0-9.]+) s; a new one is started there in ([0-9.]+) s", self.log())
        log = log[-4:]  # the log goes on from one cluster to the next
        self.assertEqual(len(log), 4, self.log())
        possible = {0}  # how many nodes in a row have ended soon
        for lived, delay in ((float(a), float(b)) for a, b in log):
            soon, late = lived <= 2.0, lived >= 2.0  # both, of a time that is printed as 2.0
            possible = {n + 1 for n in possible if soon} | {n // 2 for n in possible if late}
            possible = {n for n in possible if delay == 0.1 * 2 ** max(n - 1, 0)}
            self.assertTrue(possible, log)

    def test_added(self):
        if CLUSTER[0] != "-n":
            self.up()
            self.assertIn("emulated hosts", self.weft("up", "--add", "1", code=1).stderr)
            return
        self.assertIn("is not up", self.weft("up", "--add", "1", code=1).stderr)
        self.up()
        self.weft("up", "--add", "2")
        self.numbers |= {3, 4}
        got = self.status()["nodes"]
        self.assertEqual([(n["node"], n["state"]) for n in got], [(k, "up") for k in range(5)])
        self.assertEqual(self.exec("--", "echo", "x").stdout, "x\n" * 5)
        place = [n["place"] for n in got if n["node"] == 4][0]
        self.kill(place)
        self.kill(0)
        self.assertIn("leave out", self.weft("up", "--add", "1", "-n", "2", code=2).stderr)
        self.assertIn("expected a number of nodes", self.weft("up", "--add", "0", code=2).stderr)
        self.assertIn("other hosts do not reach", self.weft("up", "--add", "elsewhere", code=1).stderr)
        self.weft("down")
        self.assertEqual(marked(), [])

    def test_down_meanwhile(self):
        """Nodes that are being started again end as well, and nothing is left."""
        self.up()
        for place in (0, 1, 2):
            os.kill(self.at(place)["pid"], signal.SIGKILL)
            self.weft("down", code=None)
            self.assertEqual(marked(), [])
            self.assertEqual(sorted(set(os.listdir(self.path())) - {"log", "log.1"}), ["lock", "taken"])
            self.up()
        self.weft("down")

    def test_all_at_once(self):
        """All nodes are killed at once, so there is no cluster that new nodes could join: `weft down` ends the launcher, which still tries
        to start them."""
        self.up()
        for pid in [self.at(place)["pid"] for place in (0, 1, 2)]:
            os.kill(pid, signal.SIGKILL)
        p = self.weft("down", code=1)
        self.assertIn("no node is running on this host", p.stderr)
        self.assertEqual(marked(), [])


class Maps(Kills):
    """Not on emulated hosts, where a map's first node would be started by a standing node, and end with it."""

    def test_with_a_map(self):
        """Each node in turn is killed while a `weft map` runs on all of them: the output of the map is right."""
        self.up()
        kills = int(os.environ.get("WEFT_TEST_KILLS", "3"))
        path = os.path.join(self.tmp.name, "lines")
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"{k} {k * k}\n" for k in range(40_000))
        with open(path, "rb") as f:
            lines = f.read()
        for k in range(kills):
            run = Map(self, path)
            run.wait_for_bytes()
            self.assertFalse(run.finished())
            self.kill(k % 3)
            status, out, err = run.result()
            self.assertEqual((status, out == lines), (0, True), err[-3000:])
        print(f"{kills} kills; seen by the status after at most {max(self.seen):.2f} s, mean {sum(self.seen) / kills:.2f} s; "
              f"another node up after at most {max(self.back):.2f} s, mean {sum(self.back) / kills:.2f} s", file=sys.stderr)


class Interrupted(Standing):
    def test_map_that_begins(self):
        """A `weft map` that is interrupted while its nodes join each other ends at once: no node waits for others that have ended."""
        self.up()
        path = os.path.join(self.tmp.name, "lines")
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"{k}\n" for k in range(10_000))
        for k in range(20):
            p = self.start("map", "--cluster", "default", path, "--", "cat")
            time.sleep(0.01 + 0.004 * k)
            p.send_signal(signal.SIGINT)
            err = p.communicate(timeout=LIMIT)[1].decode()
            self.assertIn(p.returncode, (-signal.SIGINT, 128 + signal.SIGINT, 0), err)
            self.assertNotIn("did not end", err)


class Here(Standing):
    """Hosts whose nodes are started without a launcher, as by systemd. Each is a folder of its own here."""

    def node(self, k, **more):
        env = {**self.env, "WEFT_RANK": str(k), "WEFT_SIZE": "3", "WEFT_COORD": f"unix:{self.tmp.name}/coord", "WEFT_SECRET": "sesame", **more}
        p = subprocess.Popen([WEFT, "up", "--here", "--cluster", f"c{k}"], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def all_ended(self, nodes):
        said = [p.communicate(timeout=LIMIT)[1].decode(errors="replace") for p in nodes]
        self.assertEqual([p.returncode for p in nodes], [0, 0, 0], "\n".join(text[:2500] + "\n...\n" + text[-1500:] for text in said))

    def free(self, k):
        """Nothing of a killed node holds the cluster's lock any more: processes that it forked do, until they see its end."""
        with open(os.path.join(self.tmp.name, "weft", f"c{k}", "lock"), "rb") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def shown(self, k):
        p = self.weft("status", "--cluster", f"c{k}", "--json", code=None)
        return [(n["node"], n["state"]) for n in json.loads(p.stdout)["nodes"]] if p.returncode == 0 else []

    def test_any_of_them_comes_back(self):
        nodes = [self.node(k) for k in range(3)]
        until("all are up", lambda: all(self.shown(k) == [(0, "up"), (1, "up"), (2, "up")] for k in range(3)))
        back = []
        for k in (0, 1):  # the first one, too
            nodes[k].kill()
            until("the others see it", lambda k=k: ("gone" in [state for _, state in self.shown(2)]))
            until("its lock is free", lambda k=k: self.free(k))
            nodes[k] = self.node(k)
            # Numbers are used up by attempts to join that fail, as on a busy machine.
            back += until("it is back", lambda k=k, last=max([2, *back]): len(self.shown(k)) >= 3 and
                          [n for n, state in self.shown(2) if n > last and state == "up"])
        self.exec("--cluster", "c1", "--on", str(back[0]), "--", "true")
        wrong = self.node(1, XDG_RUNTIME_DIR=self.wrong(), WEFT_SECRET="another")
        _, err = wrong.communicate(timeout=LIMIT)
        self.assertNotEqual(wrong.returncode, 0)
        self.assertIn(b"secret", err)
        self.assertEqual(len([state for _, state in self.shown(2) if state == "up"]), 3)
        self.weft("down", "--cluster", "c0")
        self.all_ended(nodes)

    def test_it_runs_without_this_host(self):
        """A host that does not reach the others at first waits for them to begin; when it reaches them, it joins."""
        nodes = [self.node(k) for k in range(3)]
        until("all are up", lambda: all(self.shown(k) == [(0, "up"), (1, "up"), (2, "up")] for k in range(3)))
        nodes[1].kill()
        until("the others see it", lambda: (1, "gone") in self.shown(2))
        until("its lock is free", lambda: self.free(1))
        door = f"unix:{self.tmp.name}/elsewhere"  # as if the other hosts' addresses were not reached
        nodes[1] = self.node(1, WEFT_GROW=door)
        time.sleep(1)
        self.assertEqual((nodes[1].poll(), self.shown(1)), (None, []))  # it waits for node 0
        os.symlink(f"{self.tmp.name}/coord.grow", f"{self.tmp.name}/elsewhere")
        until("it has joined", lambda: (3, "up") in self.shown(2))
        self.weft("down", "--cluster", "c0")
        self.all_ended(nodes)

    def wrong(self):
        path = os.path.join(self.tmp.name, "other")
        os.mkdir(path, 0o700)
        return path


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
