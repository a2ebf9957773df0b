#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft run and weft map --hostfile between two virtual machines, by ssh and a real sshd, over the kernel's own software RDMA.

The first machine has the launcher and node 0. Without WEFT_TEST_LONG=1 it is a cluster of which a node is killed, one that is interrupted, and
two jobs of map.

Usage: test_ssh.py RUN WEFT PEER    (tests/vm/run; the command weft; multi_peer)
"""
import os
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import over_ssh  # noqa: E402
from over_ssh import LIMIT, LONG  # noqa: E402

long_only = unittest.skipUnless(LONG, "one of the long forms (WEFT_TEST_LONG=1)")


class Ssh(over_ssh.Machines):
    lines, jobs = 200_000, 2  # of test_map: its input, and how many of its two jobs

    def start(self, *args, sub="run", stdout=subprocess.PIPE, **env):
        self.write_hostfile()
        return subprocess.Popen([self.weft, sub, "--hostfile", self.hostfile, "--nodes", "2", *args], text=True, env=self.env(**env),
                                start_new_session=True, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE)

    def run_weft(self, *args, **env):
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def peers(self, times, end, **env):
        code, out, err = self.run_weft("-t", "--", "sh", "-c", f"hostname; echo to err >&2; exec {self.peer} {times} {end}", **env)
        for k in (0, 1):
            self.assertIn(f"[{k}] vm{k + 1}\n", out)
            self.assertIn(f"[{k}] node {k} of 2: all is well\n", out)
            self.assertIn(f"[{k}] to err\n", err)
        self.nothing_stays()
        return code, out, err

    def test_node_killed(self):
        """A cluster checks every byte until the node on the other machine is killed; this is noticed and reported."""
        code, out, err = self.peers(1, "kill", WEFT_LIVENESS="30s")
        self.assertEqual(code, 137, out + err)
        self.assertIn("weft run: node 1 (on root@vm2) was killed by SIGKILL\n", err)
        self.assertIn("[0] node 0: node 1 is dead after", out)

    def test_map(self):
        """A job is shared with the other machine, which has none of its files. What runs here waits until something has
        come from there; the second time, until the node there is killed."""
        with open("/tmp/in", "w", encoding="utf-8") as file:
            file.writelines(f"{n}\n" for n in range(self.lines))
        for kill, wait, mode in ((False, "[ -s /tmp/out ]", "--unordered"), (True, "[ -e /tmp/killed ]", "--no-progress"))[-self.jobs:]:
            command = f"[ {{node}} = 1 ] || until {wait}; do sleep 0.2; done; : >/tmp/ran-{{#}}; cat; sleep 1007 &"
            with open("/tmp/out", "w+", encoding="utf-8") as out:
                process = self.start("--memory", "24M", "--slots", "1", "--block", "100K", mode, "/tmp/in", "--", "sh", "-c",
                                     command, sub="map", stdout=out)
                if kill:
                    there = self.far("until [ $(ls /tmp | grep -c ran-) -gt 1 ]; do sleep 0.2; done; "
                                     "kill -KILL $(pgrep -of '[m]ap --as-node')")
                    self.assertEqual((there.returncode, there.stderr), (0, ""))
                    with open("/tmp/killed", "w", encoding="utf-8"):
                        pass
                _, err = process.communicate(timeout=2 * LIMIT)
                out.seek(0)
                found = list(map(int, out))
            self.assertEqual((process.returncode, (found if kill else sorted(found)) == list(range(self.lines))), (0, True), err)
            self.assertEqual("weft map: node 1 is gone; its pieces run again elsewhere\n" in err, kill, err)
            self.nothing_stays()
            self.far("rm -f /tmp/ran-*")

    @long_only
    def test_one_cluster(self):
        code, out, err = self.peers(10, "leave")
        self.assertEqual((code, len(out.splitlines()), len(err.splitlines())), (0, 4, 2), out + err)

    def begun(self, *args):
        """Starts two nodes that sleep, each with a child process, and waits until both have reported that."""
        process = self.start("-t", *args, "--", "sh", "-c", "sleep 1007 & echo begun; wait")
        said = [process.stdout.readline(), process.stdout.readline()]
        self.assertEqual(sorted(said), ["[0] begun\n", "[1] begun\n"])
        return process

    def test_interrupted(self):
        process = self.begun()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, err), (128 + signal.SIGINT, ""))
        self.nothing_stays()

    @long_only
    def test_launcher_killed(self):
        process = self.begun()
        process.kill()
        process.communicate(timeout=LIMIT)
        self.nothing_stays()

    @long_only
    def test_connection_lost(self):
        """sshd's process for the connection is killed: the remote node ends with it, and the launcher reports which ssh failed."""
        process = self.begun("-k")
        self.far("kill -KILL $(ps -o ppid= -p $(pgrep -of '[a]s-node'))")
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 255, err)
        self.assertIn("node 1 (on root@vm2): ssh failed", err)
        self.nothing_stays()

    @long_only
    def test_exit_codes(self):
        code, _, err = self.run_weft("--", "sh", "-c", "[ $WEFT_RANK = 0 ] || exit 7")
        self.assertEqual((code, err), (7, "weft run: node 1 (on root@vm2) exited with 7\n"))
        code, out, err = self.run_weft("--", "sh", "-c", "if [ $WEFT_RANK = 1 ]; then exec /no/such/program; fi")
        self.assertEqual((code, out), (127, ""), err)
        self.assertIn("node 1 (on root@vm2) exited with 127", err)

    @long_only
    def test_host_not_known(self):
        """A host that pretends to be the other machine, with another key, gets no program, secret or data."""
        code, out, err = self.run_weft("-k", "--", "sleep", "1007", WEFT_SSH=" ".join(self.ssh).replace("/known", "/unknown"))
        self.assertEqual((code, out), (255, ""), err)
        self.assertIn("Host key verification failed", err)
        self.nothing_stays()


if __name__ == "__main__":
    over_ssh.main(__file__, ["--modules", "rdma_rxe"], over_ssh.SSHD_CONFIG, "vm2", 400, 900)
