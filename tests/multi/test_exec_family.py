#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft exec: a program that is ended is ended with all its descendants, in whatever groups and sessions they are. What a program that ends by
itself has left in other groups stays.

Usage: test_exec_family.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER as in test_standing.py
"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import test_exec_tty
import test_standing
from processes import alive
from test_standing import LIMIT, Standing, Up, until

# What a program leaves behind for those who kill only its group, and how many processes that are.
FAMILIES = {
    "a group of its own": ("timeout 300 sleep {0}; true", 1),
    "a session of its own": ("setsid sleep {0} & sleep {0}; true", 2),
    "a daemon, whose parent has ended": ("(setsid setsid sleep {0} &) ; (setsid sleep {0} &) ; sleep {0}; true", 3),
    "a daemon without environment": ("(setsid env -i sleep {0} &) ; sleep {0}; true", 2),
    "a daemon of a daemon, which ignores signals":
        ("(setsid sh -c 'trap \"\" TERM INT HUP; (setsid sleep {0} &) ; sleep {0}; true' &) ; sleep {0}; true", 3),
}
numbers = iter(range(7001, 8000))


def sleepers(number):
    """Processes `sleep number`, also those without environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and words[1] == number.encode() and alive(int(pid)):
            found.append(int(pid))
    return found


class Base(Standing):
    def number(self):
        """A time to sleep that no other process on this host sleeps."""
        number = f"{next(numbers)}.{os.getpid()}"
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in sleepers(number)])
        return number

    def families(self, *options, **more):
        """Each family in turn, running: the command that started it, its number, its job, and the node's process."""
        for name, (script, count) in FAMILIES.items():
            number = self.number()
            p = self.start("exec", "--on", "1", *options, "--", "sh", "-c", script.format(number), **more)
            until(f"all processes of the family run: {name}", lambda number=number, count=count: len(sleepers(number)) == count)
            yield p, number

    def job(self, number):
        return [str(j["job"]) for j in json.loads(self.weft("ps", "--json").stdout) if number in j["command"]][0]

    def gone(self, number):
        until("its processes have ended", lambda: not sleepers(number))


class Family(Up, Base):
    def test_command_killed(self):
        for p, number in self.families():
            p.kill()
            p.communicate()
            self.gone(number)

    def test_timeout(self):
        for p, number in self.families("--timeout", "700ms"):
            p.communicate(timeout=LIMIT)
            self.assertEqual(p.returncode, 124)
            self.assertEqual(sleepers(number), []) # the command ends when all have ended

    def test_signals(self):
        """SIGINT is what Ctrl-C sends; a second one kills."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for p, word in self.families():
                p.send_signal(number)
                try:
                    p.wait(timeout=1)
                except subprocess.TimeoutExpired: # a shell that waits for a program to which SIGINT does not go waits on
                    p.send_signal(number)
                p.communicate(timeout=LIMIT)
                self.assertEqual(sleepers(word), [])

    def test_weft_kill(self):
        for options in ((), ("--signal", "KILL")):
            for p, number in self.families():
                self.weft("kill", *options, self.job(number))
                p.communicate(timeout=LIMIT)
                self.assertEqual(sleepers(number), [])

    def test_detached(self):
        """It stays when its command ends, and `weft kill` ends it with all."""
        for p, number in self.families("--detach"):
            p.communicate(timeout=LIMIT)
            job = self.job(number)
            self.assertTrue(sleepers(number))
            self.weft("kill", job)
            until("the job has ended",
                  lambda: [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]["state"] == "ended")
            self.assertEqual(sleepers(number), [])

    def test_daemon_stays(self):
        """What a program that ended by itself has left in other groups and sessions stays, and the end of another program does not touch it."""
        number = self.number()
        self.exec("--on", "1", "--", "sh", "-c", f"(setsid sleep {number} &) ; setsid sleep {number} & sleep 0.2")
        until("both run", lambda: len(sleepers(number)) == 2)
        for p, other in self.families():
            p.kill()
            p.communicate()
            self.gone(other)
        self.assertEqual(len(sleepers(number)), 2)

    def test_neighbours(self):
        """Only the program's own descendants are ended, not those of another program on the same node."""
        script = FAMILIES["a daemon, whose parent has ended"][0]
        one, other = self.number(), self.number()
        p = self.start("exec", "--on", "1", "--", "sh", "-c", script.format(one))
        q = self.start("exec", "--on", "1", "--", "sh", "-c", script.format(other))
        until("all run", lambda: len(sleepers(one)) == len(sleepers(other)) == 3)
        p.kill()
        p.communicate()
        self.gone(one)
        self.assertEqual(len(sleepers(other)), 3)
        q.kill()
        q.communicate()
        self.gone(other)

    def test_storm(self):
        """Processes that start others all the time, each in a session of its own, and end."""
        number = self.number()
        spread = f"f() {{ while :; do (setsid sleep {number} &); sleep 0.01; done; }}; for i in 1 2 3 4; do f & done; wait"
        chain = f"sleep {number} & sleep 0.005; setsid -f sh -c \"$0\" \"$0\""
        for script in (spread, f"sh -c '{chain}' '{chain}'; sleep {number}"):
            p = self.start("exec", "--on", "1", "--", "sh", "-c", script)
            until("some run", lambda: len(sleepers(number)) > 20)
            p.kill()
            p.communicate()
            self.gone(number)
            time.sleep(0.3)
            self.assertEqual(sleepers(number), [])

    def test_guardian_killed(self):
        """Without its guardian the node ends the programs itself."""
        node = [n["pid"] for n in self.status()["nodes"] if n["node"] == 1][0]
        with open(f"/proc/{node}/task/{node}/children", encoding="ascii") as f:
            children = f.read().split()
        guardian = []
        for pid in children:
            with open(f"/proc/{pid}/comm", encoding="ascii") as f:
                if f.read() == "weft-guardian\n":
                    guardian.append(int(pid))
        self.assertEqual(len(guardian), 1)
        for pid in guardian:
            os.kill(pid, signal.SIGKILL)
        for p, number in self.families():
            p.kill()
            p.communicate()
            self.gone(number)


class Terminal(Up, test_exec_tty.Base, Base):
    """A shell with job control puts each of its jobs into a group of its own. One job here loses the mark of its family, not its session."""

    def shell(self, *options):
        number = self.number()
        t = self.terminal("bash", "--norc", options=options)
        t.type(f"set -m; sleep {number} & (trap '' HUP; exec setsid sleep {number}) & nohup sleep {number} >/dev/null & "
               f"prlimit --rttime=unlimited nohup sleep {number} >/dev/null & echo all$?\n".encode())
        t.read(rb"all0")
        until("all run", lambda: len(sleepers(number)) == 4)
        return t, number

    def test_command_killed(self):
        for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
            t, number = self.shell()
            os.kill(t.pid, sent)
            t.wait()
            self.gone(number)

    def test_timeout(self):
        t, number = self.shell("--timeout", "2s")
        self.ended(t, 124)
        self.assertEqual(sleepers(number), [])

    def test_weft_kill(self):
        t, number = self.shell()
        job = [str(j["job"]) for j in json.loads(self.weft("ps", "--json").stdout) if "bash" in j["command"]][0]
        self.weft("kill", job)
        t.wait()
        self.assertEqual(sleepers(number), [])

    def test_hang_up(self):
        """All groups of the terminal's session get SIGHUP, and have a moment for what they do then."""
        path = os.path.join(self.tmp.name, "hung-up")
        t = self.terminal("bash", "--norc")
        t.type(f"set -m; sh -c 'trap \"echo bye >{path}; exit\" HUP; echo $((40 + 2))ready; while :; do sleep 0.02; done' &\n".encode())
        t.read(rb"42ready")
        os.kill(t.pid, signal.SIGKILL)
        t.wait()
        until("it has seen the end of the terminal", lambda: os.path.exists(path))

    def test_shell_ends(self):
        """A shell that ends by itself leaves what is to outlive it."""
        number = self.number()
        t = self.terminal("bash", "--norc")
        t.type(f"setsid nohup sleep {number} >/dev/null </dev/null 2>&1 & sleep 0.2; exit\n".encode())
        self.ended(t, 0)
        self.assertEqual(len(sleepers(number)), 1)


class Cluster(Base):
    """The end of the cluster, or of a node, ends all programs, also detached ones."""

    def each(self, end):
        for options in ((), ("--detach",)):
            self.weft("up", *test_standing.CLUSTER)
            self.addCleanup(self.down)
            running = list(self.families(*options))
            end()
            for p, number in running:
                p.communicate(timeout=LIMIT)
                self.gone(number)
            self.down()

    def test_down(self):
        self.each(lambda: self.weft("down"))

    def test_node_killed(self):
        self.each(lambda: os.kill([n["pid"] for n in self.status()["nodes"] if n["node"] == 1][0], signal.SIGKILL))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
