#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processes of a mesh are killed at any moment and started again. The others see only what the profile allows, the data that they
exchange is correct, and in the end nothing is left.

Usage: test_kill.py PATH-OF-SOFTVERBS PATH-OF-MESH [TEST...]     WEFT_TEST_LONG=1: a minute instead of some seconds
"""
import fcntl
import os
import random
import selectors
import subprocess
import sys
import time
import unittest

import processes
from processes import LIMIT, Base

MESH = None
SECONDS = 60 if os.environ.get("WEFT_TEST_LONG") else 6
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
KINDS = ("rc", "uc", "srq")
RETRY_EXCEEDED = 12  # IBV_WC_RETRY_EXC_ERR


class Node:
    """A process of the mesh."""

    def __init__(self, test, number, host):
        self.number = number
        self.errors = os.path.join(test.folder.name, f"errors.{number}")
        with open(self.errors, "w", encoding="utf-8") as err:
            self.process = subprocess.Popen(
                [processes.COMMAND, "run", "--fabric", "test", "--host", str(host), "--", MESH, str(number)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, env=test.env)
        out = self.process.stdout.fileno()
        fcntl.fcntl(out, fcntl.F_SETFL, fcntl.fcntl(out, fcntl.F_GETFL) | os.O_NONBLOCK)
        self.rest = b""
        self.stats = []
        self.said = set()

    def say(self, *words):
        if self.process.stdin.closed:
            return  # it was killed meanwhile
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # seen as its end

    def lines(self):
        """Whole lines that have come; None at the end."""
        data = self.process.stdout.read()
        if data == b"":
            return None
        parts = (self.rest + (data or b"")).split(b"\n")
        self.rest = parts.pop()
        return [p.decode() for p in parts]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass


class Kill(Base):
    NODES = 4

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.nodes, self.links, self.broken = {}, {}, set()
        self.epoch = 0
        self.selector = selectors.DefaultSelector()

    def tearDown(self):
        for node in self.nodes.values():
            node.close()
        self.selector.close()
        super().tearDown()

    def wrong(self, node, text):
        with open(node.errors, encoding="utf-8") as f:
            self.fail(f"seed {SEED}: node {node.number} (pid {node.process.pid}): {text}\n{f.read()}")

    # --- what nodes say -----------------------------------------------------------------------------------------------

    def pump(self, seconds):
        for key, _ in self.selector.select(seconds):
            node = key.data
            lines = node.lines()
            if lines is None:
                self.selector.unregister(key.fileobj)
                if node.process.wait():
                    self.wrong(node, f"ended with {node.process.returncode}")
                continue
            for line in lines:
                self.heard(node, line)

    def heard(self, node, line):
        what, *words = line.split()
        if what == "stat":
            node.stats.append((int(words[0]), words[1], int(words[2]), int(words[3])))
            return
        if what in ("quiet", "told"):
            node.said.add(what)
            return
        if what not in ("card", "joined", "broken"):
            self.wrong(node, line)
        peer, kind, epoch = int(words[0]), words[1], int(words[2])
        link = self.links.get((min(peer, node.number), max(peer, node.number), kind))
        if link is None or link["epoch"] != epoch:
            return  # of a connection that was given up
        if what == "card":
            link["cards"][node.number] = words[3:]
            if len(link["cards"]) == 2:
                for n in link["cards"]:
                    other = next(o for o in link["cards"] if o != n)
                    self.nodes[n].say("join", other, kind, epoch, *link["cards"][other])
        elif what == "joined":
            link["joined"].add(node.number)
            if len(link["joined"]) == 2:
                for n in link["joined"]:
                    link["going"].add(n)
                    self.nodes[n].say("go", next(o for o in link["joined"] if o != n), kind, epoch)
        elif peer not in self.dead or kind == "uc" or int(words[3]) != RETRY_EXCEEDED:
            self.wrong(node, f"{line}; dead are {sorted(self.dead)}")
        else:
            link["broken"].add(node.number)

    def until(self, what, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > end:
                self.fail(f"seed {SEED}: waited in vain until {what()}")
            self.pump(0.01)

    # --- coming and going ----------------------------------------------------------------------------------------------

    def begin(self, number):
        """Starts a node, and links it with all living nodes."""
        node = Node(self, number, self.random.randrange(8))
        self.nodes[number] = node
        self.dead.discard(number)
        self.selector.register(node.process.stdout, selectors.EVENT_READ, node)
        for other in self.nodes:
            if other == number or other in self.dead:
                continue
            for kind in KINDS:
                self.epoch += 1
                self.links[min(other, number), max(other, number), kind] = {
                    "epoch": self.epoch, "cards": {}, "joined": set(), "going": set(), "broken": set()}
                self.nodes[other].say("link", number, kind, self.epoch)
                node.say("link", other, kind, self.epoch)

    def kill(self, numbers):
        for n in numbers:
            node = self.nodes[n]
            self.selector.unregister(node.process.stdout)
            self.dead.add(n)
            node.process.kill()
        for n in numbers:
            self.nodes[n].close()

    def unseen(self):
        """Links of living nodes to dead ones that have not broken yet, although they must break."""
        return [(key, n) for key, link in self.links.items() if key[2] != "uc" and set(key[:2]) & self.dead
                for n in link["going"] - link["broken"] if n not in self.dead]

    def ask(self, nodes, word):
        """Asks each node how much it has sent and received on its links: "count": until now; "tell": when nothing more arrives."""
        for n in nodes:
            self.nodes[n].stats.clear()
            self.nodes[n].said.discard("told")
            self.nodes[n].say(word)
        self.until(lambda: "all have told", lambda: all("told" in self.nodes[n].said for n in nodes))

    def all_carry(self):
        self.ask(self.nodes, "count")
        return all(sent and got for node in self.nodes.values() for _, _, sent, got in node.stats)

    def leave(self):
        """Stops all nodes: each prints what it has sent and received, and must end successfully."""
        living = [n for n in self.nodes if n not in self.dead]
        for n in living:
            self.nodes[n].say("quiet")
        self.until(lambda: "all are quiet", lambda: all("quiet" in self.nodes[n].said for n in living))
        self.ask(living, "tell")
        for n in living:
            for peer, kind, sent, got in self.nodes[n].stats:
                link = self.links[min(peer, n), max(peer, n), kind]
                if peer not in self.dead and link["going"] and kind != "uc":
                    there = next(s for s in self.nodes[peer].stats if s[0] == n and s[1] == kind)
                    self.assertEqual(sent, there[3], f"seed {SEED}: messages {n} sent to {peer}, {kind}")
            self.nodes[n].say("stop")
        for n in living:
            self.until(lambda n=n: f"node {n} has ended", lambda n=n: self.nodes[n].process.poll() is not None)
        self.pump(0)

    def in_use(self):
        """The numbers of objects and processes that `softverbs ls` shows as in use; zeros are left out."""
        fabric, = self.json("ls")
        found = {"processes": len(fabric["processes"]), "leaked_pd": sum(d["leaked_pd"] for d in fabric["devices"])}
        for kind in ("qp", "pd", "mr", "cq", "srq"):
            found[kind] = sum(d[kind]["used"] for d in fabric["devices"])
        return {kind: count for kind, count in found.items() if count}

    # --- tests --------------------------------------------------------------------------------------------------------

    def test_random_kills(self):
        self.dead = set()
        for n in range(self.NODES):
            self.begin(n)
        end, kills, messages = time.monotonic() + SECONDS, 0, 0
        while time.monotonic() < end:
            # now and then so soon that the victim has hardly begun
            until = time.monotonic() + self.random.choice((0.0, 0.005, 0.02, 0.1, 0.3))
            while time.monotonic() < until:
                self.pump(0.005)
            victims = self.random.sample(range(self.NODES), self.random.choice((1, 1, 1, 2)))
            self.kill(victims)
            kills += len(victims)
            self.until(lambda: f"links to {sorted(self.dead)} broke: {self.unseen()}", lambda: not self.unseen())
            for n in victims:
                self.begin(n)
        self.until(lambda: "all are linked", lambda: all(len(link["going"]) == 2 for link in self.links.values()))
        self.until(lambda: "something went over every link", self.all_carry)
        self.leave()
        for node in self.nodes.values():
            for peer, kind, sent, got in node.stats:
                self.assertTrue(sent and got, f"seed {SEED}: nothing went between {node.number} and {peer}, {kind}")
                messages += got
        print(f"{kills} kills; the last connections carried {messages} messages", file=sys.stderr)
        self.assertEqual(self.in_use(), {}, f"seed {SEED}: left in use")
        self.softverbs("down", "--fabric", "test")
        left = [n for n in os.listdir(self.folder.name) if not n.startswith("errors.")]
        self.assertEqual(left, [])


if __name__ == "__main__":
    processes.COMMAND = os.path.abspath(sys.argv.pop(1))
    MESH = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
