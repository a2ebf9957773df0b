#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft run --hostfile with other hosts. Instead of ssh a script runs the command on this machine (stand_in.py).

Usage: test_ssh.py WEFT MULTI_PEER    (started by over_softverbs.py, for the device)
"""
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

import unittest

sys.dont_write_bytecode = True
from processes import alive, clean_env, patience, until  # noqa: E402
from stand_in import APART, SSH  # noqa: E402

LIMIT = patience(60)  # seconds until something that should have happened is called a failure
START = os.getcwd()
WEFT, PEER = [os.path.abspath(path) for path in sys.argv[1:3]]

def interruptible():
    """A shell starts background jobs with SIGINT ignored, and the launcher keeps it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Hosts(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        # Not below TMPDIR: paths of sockets, in runtime folders of hosts with long names, have at most 100 bytes.
        self.tmp = tempfile.TemporaryDirectory(prefix="weft-ssh-", dir="/tmp")
        self.addCleanup(self.tmp.cleanup)
        self.ssh = self.path("ssh")
        with open(self.ssh, "w", encoding="utf-8") as f:
            f.write(SSH)
        os.chmod(self.ssh, 0o755)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]

    def path(self, name):
        return os.path.join(self.tmp.name, name)

    def start(self, hosts, *args, command="run", settings=None, preexec_fn=None, **more):
        file = {"weft": 1, "coord": f"127.0.0.1:{self.port}", "hosts": hosts, "settings": settings or {}}
        with open(self.path("hosts.json"), "w", encoding="utf-8") as f:
            json.dump(file, f)
        library = os.path.join(START, os.environ["WEFT_VERBS_LIBRARY"])
        # On a busy machine a silent node must not be declared dead: see over_softverbs.py.
        env = clean_env(WEFT_SSH=self.ssh + " -p 7", WEFT_VERBS_LIBRARY=library,
                        SOFTVERBS_HOST="0", WEFT_LIVENESS="30s", **more)
        return subprocess.Popen([WEFT, command, "--hostfile", self.path("hosts.json"), *args], env=env, cwd=self.tmp.name,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=preexec_fn)

    def run_weft(self, *args, **more):
        process = self.start(*args, **more)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    HERE = {"ssh": "localhost", "ips": ["127.0.0.1"]}

    def there(self, *numbers):
        return [{"ssh": f"user@host-{n}.invalid-{n}"} for n in numbers]

    def weft(self, *args, **more):
        return subprocess.run([WEFT, *args], env=clean_env(XDG_RUNTIME_DIR=self.tmp.name, **more), cwd=self.tmp.name, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT, check=False)

    def on(self, k, *words, code=0):
        """A weft command on host K: of ssh's words, since this is the stand-in, which gives each host its own runtime folder."""
        host = f"user@host-{k}.invalid-{k}"
        command = " ".join(shlex.quote(word) for word in (f"WEFT_SSH={self.ssh} -p 7", WEFT, *words))
        p = subprocess.run([self.ssh, "--", host, "env " + command], cwd=self.tmp.name, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           env=clean_env(XDG_RUNTIME_DIR=self.tmp.name), timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, code, (words, p.stdout, p.stderr))
        return p

    def nodes_on(self, k):
        return json.loads(self.on(k, "status", "--json").stdout)["nodes"]

    def shown(self, k):
        return [(n["node"], n["state"]) for n in self.nodes_on(k)]


class Ssh(Hosts):
    def test_matrix(self):
        """weft topo --matrix of several machines: the hosts' entries are kept, and the address where the nodes met is the first host's."""
        first = {"ssh": "localhost"}
        for said, ips in ((first, ["127.0.0.1"]), ({**first, "ips": ["::1", "127.0.0.1"]}, ["::1", "127.0.0.1"])):
            code, out, err = self.run_weft([said, *self.there(1, 2)], "--matrix", command="topo", settings={"pool": "16M"}, WEFT_TRANSPORT="rdma")
            self.assertEqual((code, err), (0, ""), out)
            hosts = json.loads(out)
            self.assertEqual([(h["ssh"], h["ips"]) for h in hosts], [("localhost", ips)] + [(h["ssh"], []) for h in self.there(1, 2)])
            for i, host in enumerate(hosts):
                self.assertEqual([bool(device) for device in host["rdma"]], [k != i for k in range(3)])

    def test_one_cluster(self):
        """Nodes on this and another host use shared memory and RDMA; every byte is checked."""
        if not APART:
            self.skipTest("no namespaces")
        code, out, err = self.run_weft([self.HERE, *self.there(1, 2)], "-t", PEER, "30", "leave", settings={"pool": "16M"})
        self.assertEqual((code, err), (0, ""), out)
        for k in range(3):
            self.assertIn(f"[{k}] node {k} of 3: all is well", out)

    def test_standing(self):
        """A standing cluster of several machines: commands on each, programs that join without ssh, and its end."""
        if not APART:
            self.skipTest("no namespaces")
        code, _, err = self.run_weft([self.HERE, *self.there(1, 2)], command="up", settings={"pool": "16M"}, XDG_RUNTIME_DIR=self.tmp.name)
        self.assertEqual(code, 0, err)
        try:
            nodes = json.loads(self.weft("status", "--json").stdout)["nodes"]
            self.assertEqual([(n["state"], n["pool_bytes"]) for n in nodes], [("up", 16 << 20)] * 3)
            p = self.weft("exec", "--", "sh", "-c", "readlink /proc/self/ns/ipc; exit 3")
            self.assertEqual((p.returncode, len(set(p.stdout.split()))), (3, 3), (p.stdout, p.stderr))
            p = self.weft("run", "--cluster", "default", "-t", "--", PEER, "30", "leave", WEFT_SSH="/nonexistent")
            self.assertEqual((p.returncode, p.stderr), (0, ""), p.stdout)
            for k in range(3):
                self.assertIn(f"[{k}] node {k} of 3: all is well", p.stdout)
        finally:
            p = self.weft("down")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        # All have left; the processes of other hosts' nodes end a moment later.
        until("all nodes have ended", lambda: not [n for n in nodes if n.get("pid") and alive(n["pid"])], LIMIT)
        for k in (1, 2):
            folder = f"{self.ssh}.run/user@host-{k}.invalid-{k}/weft/default"
            until(f"host {k} keeps nothing of the cluster but its log", lambda f=folder: set(os.listdir(f)) == {"lock", "log", "start", "taken"}, LIMIT)

    def test_standing_without_its_first_host(self):
        """The first host goes: the others keep running and are controlled from any of them, their nodes come back, and hosts are added."""
        if not APART:
            self.skipTest("no namespaces")
        code, _, err = self.run_weft([self.HERE, *self.there(1, 2)], command="up", settings={"pool": "16M"}, XDG_RUNTIME_DIR=self.tmp.name,
                                     WEFT_SECRET="sesame & co'")
        self.assertEqual(code, 0, err)
        for k in (1, 2, 5, 6):  # also waits until the launcher of that host has ended
            self.addCleanup(self.on, k, "up", "--end")
        pids = [n["pid"] for n in self.nodes_on(1)]
        with open(f"/proc/{pids[0]}/stat", encoding="ascii", errors="replace") as f:
            os.kill(int(f.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)  # the launcher; its keeper kills the node
        until("both others see it", lambda: self.shown(1) == self.shown(2) == [(0, "gone"), (1, "up"), (2, "up")], LIMIT)
        self.assertEqual(self.weft("status").returncode, 1)
        os.kill(pids[1], signal.SIGKILL)
        until("the node of host 1 is back", lambda: self.shown(2) == [(0, "gone"), (2, "up"), (3, "up")], LIMIT)
        self.assertEqual(self.on(1, "exec", "--on", "3", "--", "echo", "back").stdout, "back\n")
        self.assertEqual(sorted(self.on(1, "run", "--cluster", "default", "--", "sh", "-c", "echo $WEFT_RANK").stdout.split()), ["0", "1"])
        self.on(1, "up", "--add", "user@host-5.invalid-5,user@host-6.invalid-6")
        self.assertEqual([state for _, state in self.shown(5)], ["up"] * 4)  # it never knew node 0
        self.assertEqual(len(self.on(6, "exec", "--", "readlink", "/proc/self/ns/ipc").stdout.split()), 4)
        self.assertIn("is up already", self.on(1, "up", "--add", "user@host-2.invalid-2", code=1).stderr)
        victim = self.nodes_on(6)[-1]["pid"]
        os.kill(victim, signal.SIGKILL)
        until("an added host's node is back", lambda: [n["state"] for n in self.nodes_on(2)] == ["gone"] + 4 * ["up"] and
              victim not in [n.get("pid") for n in self.nodes_on(2)], LIMIT)
        with open(self.ssh + ".log", encoding="utf-8") as f:
            self.assertNotIn("sesame", f.read())
        pids = [n["pid"] for n in self.nodes_on(1) if n["state"] == "up"]
        self.on(5, "down")
        until("all have ended", lambda: not [pid for pid in pids if alive(pid)], LIMIT)

    def test_standing_cannot_start(self):
        """One host cannot be reached, or has the cluster already: nothing is left on the others."""
        if not APART:
            self.skipTest("no namespaces")
        code, _, err = self.run_weft([self.HERE, *self.there(1), {"ssh": "unreachable"}], command="up", XDG_RUNTIME_DIR=self.tmp.name)
        self.assertNotEqual(code, 0)
        self.assertIn("unreachable", err)
        self.assertIn("is not up", self.on(1, "status", code=1).stderr)
        self.assertIn("is not up", self.weft("status").stderr)
        self.on(1, "up", "-n", "1")
        self.addCleanup(self.on, 1, "down")
        code, _, err = self.run_weft([self.HERE, *self.there(1)], command="up", XDG_RUNTIME_DIR=self.tmp.name)
        self.assertNotEqual(code, 0)
        self.assertIn("is up already", err)
        self.assertEqual(self.shown(1), [(0, "up")])  # the other cluster goes on
        self.assertIn("is not up", self.weft("status").stderr)

    def test_what_a_node_gets(self):
        """Arguments arrive unchanged, with the settings and the working folder; the secret is in the environment and in no arguments."""
        script = 'printf "<%s>" "$@"; echo; pwd; env | grep -e WEFT -e ^FI_ | sort; cat'
        odd = ["", "two words", "it's", '"$HOME" `id` \\', "new\nline", "*", "-x", "~", "!!"]
        code, out, err = self.run_weft(self.there(0, 1), "--", "sh", "-c", script, "sh", *odd, settings={"pool": "7M"},
                                       WEFT_SECRET="sesame & co'", WEFT_SPIN="3us", FI_TCP_PORT_LOW_RANGE="7000")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.count("".join(f"<{word}>" for word in odd)), 2, out)
        self.assertEqual(out.count(self.tmp.name + "\n"), 2)
        for line in ("WEFT_POOL=7M", "WEFT_SPIN=3us", "WEFT_SECRET=sesame & co'", f"WEFT_COORD=127.0.0.1:{self.port}",
                     "WEFT_SIZE=2", "FI_TCP_PORT_LOW_RANGE=7000"):
            self.assertEqual(out.count(line + "\n"), 2, line)
        self.assertIn("WEFT_RANK=0\n", out)
        self.assertIn("WEFT_RANK=1\n", out)
        self.assertNotIn("WEFT_HOSTFILE", out)
        with open(self.ssh + ".log", encoding="utf-8") as f:
            said = f.read()
        self.assertNotIn("sesame", said)
        self.assertIn("-p 7 ", said)

    def test_secret_file(self):
        with open(os.open(self.path("secret"), os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as f:
            f.write("of the file\n")
        code, out, _ = self.run_weft(self.there(0, 1), "--", "sh", "-c", "echo $WEFT_SECRET_FILE $WEFT_SECRET",
                                     settings={"secret_file": self.path("secret")})
        self.assertEqual((code, out), (0, "of the file\nof the file\n"))

    def test_gpus(self):
        """Each machine's GPUs are assigned to the nodes on that machine."""
        there = self.there(0, 1)
        code, out, err = self.run_weft([there[0], there[1], there[0]], "-t", "--gpus", "2", "--", "sh", "-c",
                                       "echo $CUDA_VISIBLE_DEVICES; env | grep -c WEFT_GPUS", CUDA_VISIBLE_DEVICES="3,5,8")
        self.assertEqual(sorted(out.splitlines()), ["[0] 0", "[0] 3,5", "[1] 0", "[1] 3,5", "[2] 0", "[2] 8,3"], err)
        code, out, err = self.run_weft(self.there(0), "--gpus", "2", "--", "true", CUDA_VISIBLE_DEVICES="0")
        self.assertNotEqual(code, 0)
        self.assertIn("this machine has only 1 GPU that nodes may use", err)

    def test_failures(self):
        for script, code, says in (("exit 7", 7, "exited with 7"), ("kill -SEGV $$", 139, "killed by SIGSEGV")):
            got, _, err = self.run_weft(self.there(0), "--", "sh", "-c", script)
            self.assertEqual(got, code, err)
            self.assertIn(says, err)
            self.assertIn("on user@host-0", err)
        code, _, err = self.run_weft(self.there(0), "no-such-program-anywhere")
        self.assertEqual(code, 127)
        self.assertIn("could not start no-such-program-anywhere on ", err)
        for ssh, why in (("no-such-ssh", "No such file"), (self.tmp.name, "Permission denied")):
            self.ssh = ssh
            code, out, err = self.run_weft([self.HERE, *self.there(1)], "true")
            self.assertEqual((code, out), (1, ""), err)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertRegex(err, rf"node 1 \(on user@host-1.*could not start {ssh}: {why}.*WEFT_SSH")
        self.ssh = self.path("ssh")
        code, _, err = self.run_weft([{"ssh": "unreachable"}], "true")
        self.assertEqual(code, 255)
        self.assertIn("ssh failed", err)
        code, _, err = self.run_weft([{"ssh": "-oProxyCommand=x"}], "true")
        self.assertNotEqual(code, 0)
        self.assertFalse(os.path.exists(self.path("x")))
        code, _, err = self.run_weft(self.there(0), "--remote-weft", "/nowhere/we'ft", "true")
        self.assertEqual(code, 127, err)

    def pids(self, count):
        def there():
            try:
                with open(self.path("pids"), encoding="utf-8") as f:
                    found = [int(line) for line in f.read().split()]
            except OSError:
                return None
            return found if len(found) == count else None
        return until("the nodes run", there, LIMIT)

    SLEEP = 'echo $$ >>pids; sleep 1000 & echo $! >>pids; wait'

    def test_signals(self):
        process = self.start(self.there(0, 1), "--", "sh", "-c", "trap 'echo asked; exit 3' TERM; " + self.SLEEP)
        pids = self.pids(4)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, out), (3, "asked\nasked\n"))
        until("all have ended", lambda: not any(alive(pid) for pid in pids), LIMIT)

    def test_deaf_nodes_are_killed(self):
        process = self.start(self.there(0), "--timeout", "5s", "sh", "-c", "trap '' TERM; " + self.SLEEP)
        pids = self.pids(2)
        process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 124)
        until("all have ended", lambda: not any(alive(pid) for pid in pids), LIMIT)

    def test_ssh_that_hangs(self):
        """An ssh that has not connected cannot pass a signal on: it is killed itself, and the job fails."""
        for signals in (1, 2):
            process = self.start([self.HERE, {"ssh": "silent"}], "--", "sh", "-c", "echo $$ >>pids", preexec_fn=interruptible)
            self.pids(1)
            child = until("ssh runs", lambda: self.child_of(process.pid, "sleep"), LIMIT)
            begin = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
                time.sleep(0.1)
            out, err = process.communicate(timeout=LIMIT)
            self.assertEqual((process.returncode, out), (128 + signal.SIGINT, ""), err)
            self.assertEqual(err, "weft run: node 1 did not end within 5 s of SIGTERM, and was killed\n" if signals == 1 else "")
            self.assertLess(time.monotonic() - begin, patience(9 if signals == 1 else 4))
            self.assertFalse(alive(child))
            os.remove(self.path("pids"))

    @staticmethod
    def child_of(pid, name):
        """The process ID of a child with that name; None if there is none."""
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            for child in f.read().split():
                try:
                    with open(f"/proc/{child}/comm", encoding="utf-8") as comm:
                        if comm.read() == name + "\n":
                            return int(child)
                except OSError:
                    pass
        return None

    def test_launcher_killed(self):
        process = self.start(self.there(0, 1), "--", "sh", "-c", self.SLEEP)
        pids = self.pids(4)
        process.kill()
        process.communicate(timeout=LIMIT)
        until("all have ended", lambda: not any(alive(pid) for pid in pids), LIMIT)

    def test_bad_orders(self):
        for order in (b"", b"weftnod1", b"weftnod1" + b"\xff" * 64, b"weftnod1" + bytes([1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]) +
                      b"\0" * 4 + b"abcd", os.urandom(4096)):
            done = subprocess.run([WEFT, "run", "--as-node"], input=order, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=LIMIT, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"to start a node", done.stderr)


class OverTb(Hosts):
    """The hosts have Thunderbolt devices, and an ordinary network too."""

    def links(self, k):
        """The transport of each pair of living nodes, as host K shows it."""
        return {(l["from"], l["to"]): l["transport"] for l in json.loads(self.on(k, "status", "--json").stdout)["links"] if l["from"] < l["to"]}

    def test_a_killed_node_returns(self):
        """tb connects only nodes that started together; so a node that replaces a killed one is connected by the other network."""
        if not APART:
            self.skipTest("no namespaces")
        code, _, err = self.run_weft([self.HERE, *self.there(1, 2)], command="up", settings={"pool": "16M"}, XDG_RUNTIME_DIR=self.tmp.name)
        self.assertEqual(code, 0, err)
        for k in (1, 2):  # also waits until the launcher of that host has ended
            self.addCleanup(self.on, k, "up", "--end")
        until("all links are shown", lambda: self.links(2) == {(0, 1): "tb", (0, 2): "tb", (1, 2): "tb"}, LIMIT)
        os.kill(self.nodes_on(1)[1]["pid"], signal.SIGKILL)
        # Host 2 first: while host 1 has no node, a command there fails.
        until("the node of host 1 is back", lambda: (3, "up") in self.shown(2) and (3, "up") in self.shown(1), LIMIT)
        until("all links are shown", lambda: self.links(2) == {(0, 2): "tb", (0, 3): "ofi", (2, 3): "ofi"}, LIMIT)
        p = self.weft("exec", "--on", "3", "--", "head", "-c", "10000000", "/dev/zero")
        self.assertEqual(p.stdout, "\0" * 10_000_000)
        self.assertEqual(self.on(1, "exec", "--", "echo", "x").stdout, "x\n" * 3)
        pids = [n["pid"] for n in self.nodes_on(1) if n["state"] == "up"]
        self.on(2, "down")
        until("all have ended", lambda: not [pid for pid in pids if alive(pid)], LIMIT)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
