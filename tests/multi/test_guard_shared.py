#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several programs and a standing cluster on one Thunderbolt cable, by the guard that they share: programs that are killed, stopped or too
many, strangers on the guard's socket, and what is left on the devices.

GUARD_ROUNDS=50 kills fifty times instead of a few.

Usage: test_guard_shared.py PATH-OF-WEFT CLUSTER SOFTVERBS-COMMAND BYTES-PROGRAM [TEST...], CLUSTER as "--softverbs mesh:2:tb5-strict"
"""
import itertools
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import unittest

import test_standing
from test_standing import CLUSTER, LIMIT, WEFT, Standing, marked, until

SOFTVERBS, BYTES = map(os.path.abspath, sys.argv[3:5])
ROUNDS = int(os.environ.get("GUARD_ROUNDS", "4"))
SEED = int(os.environ.get("GUARD_SEED", random.randrange(1 << 32)))
NODES = int(CLUSTER[1].split(":")[1])  # of the standing cluster, and of each program; each on a host with a device for each neighbour
EACH = {"qp": 2, "mr": 2, "cq": 2}  # what a program holds of a device: one lane, its pool and its frames


class Program:
    """A program with a node on each host, which exchanges bytes over the cable and checks them."""

    def __init__(self, test, *args):
        self.mark = chr(ord("A") + Program.count % 26)
        Program.count += 1
        self.p = subprocess.Popen([WEFT, "run", "--cluster", "default", "--", "env", f"MARK_OF_PROGRAM={self.mark}", BYTES, *args], env=test.env,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        test.addCleanup(self.close)

    count = 0

    def begun(self):
        line = self.p.stdout.readline()
        if not line.startswith("begun"):
            raise AssertionError(f"it has not begun: {line} {self.p.communicate(timeout=LIMIT)}")
        return self

    def nodes(self):
        """Its processes, those that have the node."""
        found = []
        for pid in marked():
            try:
                with open(f"/proc/{pid}/environ", "rb") as f, open(f"/proc/{pid}/comm", encoding="utf-8") as c:
                    if f"MARK_OF_PROGRAM={self.mark}".encode() in f.read().split(b"\0") and c.read().strip() == os.path.basename(BYTES)[:15]:
                        found.append(pid)
            except OSError:
                pass
        return found

    def close(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.stdout.close()
        self.p.stderr.close()
        self.p.wait(LIMIT)


class Shared(Standing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.env.update(WEFT_POOL="16M")

    def setUp(self):
        self.up()
        self.fabric = self.exec("--on", "0", "--", "printenv", "SOFTVERBS_DIR").stdout.strip()

    def devices(self):
        out = subprocess.run([SOFTVERBS, "ls", "--fabric", "weft", "--all", "--json"], env=dict(self.env, SOFTVERBS_DIR=self.fabric),
                             capture_output=True, text=True, check=True, timeout=LIMIT).stdout
        return json.loads(out)[0]

    def holds(self, programs):
        """Whether each device has what the standing node and so many programs hold, in the guard, in one domain; and none leaked."""
        ls = self.devices()
        users = [p for p in ls["processes"] if p["qp"] or p["pd"] or p["mr"] or p["cq"]]
        self.assertEqual({p["command"] for p in users}, {"weft-guard"})
        return len(users) == NODES and all(d["leaked_pd"] == 0 and d["pd"]["used"] == 1 and
                                           all(d[k]["used"] == (1 + programs) * n for k, n in EACH.items()) for d in ls["devices"])

    def hold(self, programs):
        try:
            until(f"devices have the objects of {programs} programs", lambda: self.holds(programs))
        except AssertionError as e:
            raise AssertionError(f"{e}: {json.dumps(self.devices()['devices'])}") from e

    def right(self):
        """A program runs to its end now, and its bytes are right."""
        out, err = Program(self, "3").p.communicate(timeout=LIMIT)
        self.assertIn("right\n", out, err)

    def socket_of(self, node):
        return self.exec("--on", str(node), "--", "printenv", "WEFT_GUARD_SOCKET").stdout.strip()

    def test_killed(self):
        """Three programs on one cable; one is killed at random, in one of its processes: its objects are freed, the others' bytes are
        right, and another program takes its place."""
        rng = random.Random(SEED)
        print(f"GUARD_SEED={SEED}", file=sys.stderr)
        programs = [Program(self) for _ in range(3)]
        for p in programs:
            p.begun()
        self.hold(3)
        for _ in range(ROUNDS):
            victim = programs.pop(rng.randrange(3))
            os.kill(rng.choice([victim.p.pid, *victim.nodes()]), signal.SIGKILL)
            victim.p.communicate(timeout=LIMIT)
            self.assertNotEqual(victim.p.returncode, 0)
            self.hold(2)
            for p in programs:
                self.assertIsNone(p.p.poll(), "another program has ended")
            programs.append(Program(self).begun())
            self.hold(3)
        for p in programs:
            p.p.terminate()
            self.assertNotIn("wrong", p.p.communicate(timeout=LIMIT)[1])
        self.hold(0)
        self.right()
        self.hold(0)

    def test_budget(self):
        """The device's ten queue pairs suffice for five programs: a sixth is refused, and its error names the programs that use them. When
        one of these has ended, the next can start."""
        programs = [Program(self).begun() for _ in range(4)]
        self.hold(4)
        p = Program(self, "3").p
        err = p.communicate(timeout=LIMIT)[1]
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("All of its 10 queue pairs may be in use", err)
        for q in programs:
            self.assertTrue(any(f"process {n} (" in err for n in q.nodes()), err)
        self.assertRegex(err, r"process \d+ \(weft\) 2 queue pairs and 2 regions")
        self.hold(4)
        programs[0].p.terminate()
        programs[0].p.communicate(timeout=LIMIT)
        self.right()

    def test_stopped(self):
        """A program that is stopped, and strangers that send half a call, nonsense, calls without reading an answer, or nothing: the others
        go on."""
        stopped = Program(self).begun()
        pids = stopped.nodes()
        self.assertEqual(len(pids), NODES)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        strangers = []
        for data in (b"", b"x", os.urandom(100000), b"\0" * 1_000_000):
            s = socket.socket(socket.AF_UNIX)
            self.addCleanup(s.close)
            s.connect(self.socket_of(0))
            s.setblocking(False)
            try:
                s.send(data)
            except BlockingIOError:
                pass
            strangers.append(s)
        self.right()
        for s in strangers:
            s.close()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        until("it goes on", lambda: stopped.p.poll() is None and all(test_standing.processes.state(p) in "RS" for p in pids))
        self.hold(1)
        self.right()

    def test_start_and_end(self):
        """A guard without a standing node starts with the first program and ends with the last, also when these cross."""
        env = dict(self.env, SOFTVERBS_DIR=self.fabric, WEFT_GUARD=WEFT, WEFT_SIZE=str(NODES), WEFT_TRANSPORT="rdma", MARK_OF_PROGRAM="x")
        sockets = [os.path.join(self.tmp.name, f"g{host}") for host in range(NODES)]
        numbers = itertools.count()

        def start(rounds, at):
            number = next(numbers)
            return [subprocess.Popen([SOFTVERBS, "run", "--fabric", "weft", "--host", str(host), "--", BYTES, str(rounds)],
                                     env=dict(env, WEFT_RANK=str(host), WEFT_COORD=f"unix:@{test_standing.MARK}-{number}",
                                              WEFT_GUARD_SOCKET=at[host]),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    for host in range(NODES)]

        def finish(program):
            for p in program:
                out = p.communicate(timeout=LIMIT)[0]
                self.assertEqual(p.returncode, 0, out)

        running = [start(1 + i, sockets) for i in range(3)]
        for i in range(2 * ROUNDS):
            finish(running.pop(0))
            while running and i % 3 == 0:  # now and then nobody is left
                finish(running.pop())
            while len(running) < 3:
                running.append(start(1 + i % 2, sockets))
        for program in running:
            finish(program)
        until("both guards have ended", lambda: not any(map(os.path.exists, sockets)))
        self.hold(0)
        for p in start(1, ["relative"] * NODES):
            self.assertIn("WEFT_GUARD_SOCKET='relative': expected an absolute path", p.communicate(timeout=LIMIT)[0])
        plain = os.path.join(self.tmp.name, "plain")
        with open(plain, "w", encoding="ascii") as f:
            f.write("kept")
        for p in start(1, [plain] * NODES):
            self.assertIn("the file is not a socket", p.communicate(timeout=LIMIT)[0])
        with open(plain, encoding="ascii") as f:
            self.assertEqual(f.read(), "kept")
        for command, why in (("/bin/true", ") has not answered: "), ("/nonexistent", "set WEFT_GUARD to the path of the command weft")):
            env["WEFT_GUARD"] = command
            for p in start(1, sockets):
                self.assertIn(why, p.communicate(timeout=LIMIT)[0])

    def test_socket(self):
        """Only this user may use it. Programs that the cluster runs get it, also those that are no nodes of another cluster."""
        for node in range(NODES):
            path = self.socket_of(node)
            self.assertTrue(path.startswith(self.path("guard")), path)
            mode = os.stat(path)
            self.assertTrue(stat.S_ISSOCK(mode.st_mode))
            self.assertEqual((mode.st_mode & 0o7777, mode.st_uid), (0o600, os.geteuid()))
        self.hold(0)

    def test_services(self):
        """weft exec brings bytes over the cable that a program uses."""
        source = os.path.join(self.tmp.name, "source")
        data = random.Random(1).randbytes(5_000_000)
        with open(source, "wb") as f:
            f.write(data)
        program = Program(self).begun()
        for _ in range(3):
            self.assertTrue(self.exec("--on", "1", "--", "cat", source, text=False).stdout == data)
        self.assertIsNone(program.p.poll())
        self.hold(1)

    def test_map(self):
        """weft map runs over the cable that a program uses; its nodes get their queue pairs from the same guard, and give them back."""
        path = os.path.join(self.tmp.name, "lines")
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"{k}\n" for k in range(200_000))
        program = Program(self).begun()
        self.hold(1)
        m = self.start("map", "--cluster", "default", "--block", "100K", path, "--", "sh", "-c",
                       f"[ -e {path}.go ] || {{ >{path}.$$.runs; while [ ! -e {path}.go ]; do sleep 0.01; done; }}; exec cat")
        self.addCleanup(m.kill)
        self.hold(2)
        with open(path + ".go", "w", encoding="ascii"):
            pass
        out, err = m.communicate(timeout=LIMIT)
        self.assertEqual(m.returncode, 0, err)
        with open(path, "rb") as f:
            self.assertTrue(out == f.read())
        self.assertIsNone(program.p.poll())
        self.hold(1)
        self.assertIn("have no standard input", self.weft("map", "--cluster", "default", "-", "--", "cat", code=2).stderr)

    def test_node_is_killed(self):
        """A standing node and what it runs is killed: its device leaks nothing."""
        program = Program(self).begun()
        os.kill(self.status()["nodes"][1]["pid"], signal.SIGKILL)
        program.p.communicate(timeout=LIMIT)
        until("the guard of that host has freed all",
              lambda: all((d["pd"]["used"], d["leaked_pd"]) == (int(d["host"] != "1"), 0) for d in self.devices()["devices"]))

    def test_without(self):
        """WEFT_GUARD= (empty): the standing nodes own their devices themselves."""
        self.down()
        self.env = dict(self.env, WEFT_GUARD="")
        self.up()
        self.fabric = self.exec("--on", "0", "--", "printenv", "SOFTVERBS_DIR").stdout.strip()
        self.assertEqual({p["command"] for p in self.devices()["processes"] if p["qp"]}, {"weft"})
        self.assertEqual(self.exec("--on", "0", "--", "printenv", "WEFT_GUARD_SOCKET", code=None).stdout.strip(), "")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
