#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A standing cluster: weft up, status, exec, ps, kill, logs, down, and what its commands refuse. test_standing_returns.py kills its processes,
test_standing_stopped.py stops them.

Usage: test_standing.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER: "-n 3", or "--softverbs switch:3"
"""
import base64
import concurrent.futures
import contextlib
import fcntl
import functools
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import processes  # noqa: E402
from processes import alive, clean_env, patience  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
CLUSTER = sys.argv[2].split()
LONG = os.environ.get("WEFT_TEST_LONG", "") not in ("", "0")
LIMIT = patience(60)  # seconds until something that should have ended is called a failure
MARK = f"weft-standing-test-{os.getpid()}"
NOBODY = 65534
until = functools.partial(processes.until, limit=LIMIT)


def marked():
    """The processes of this test: they have its mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if MARK.encode() in f.read() and alive(int(pid)):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def interruptible():
    """A shell starts background jobs with SIGINT ignored; the programs of these tests must not inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Standing(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-up-")
        cls.addClassCleanup(cls.tmp.cleanup)
        # Who is not given a processor for long is silent: that is no death.
        cls.env = clean_env(XDG_RUNTIME_DIR=cls.tmp.name, WEFT_LIVENESS="30s", WEFT_POOL="64M", HOME=cls.tmp.name, MARK=MARK)

    def weft(self, *args, code=0, text=True, **more):
        more.setdefault("env", self.env)
        more.setdefault("stdin", None if "input" in more else subprocess.DEVNULL)
        if "input" in more:
            del more["stdin"]
        p = subprocess.run([WEFT, *args], capture_output=True, text=text, timeout=LIMIT, check=False, **more)
        if code is not None and p.returncode != code:
            raise AssertionError(f"weft {args}: {p.returncode}\n{p.stdout[-2000:]}\n{p.stderr[-2000:]}\n{self.log()[-3000:]}")
        return p

    def start(self, *args, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([WEFT, *args], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=interruptible, **more)

    def exec(self, *args, **more):
        return self.weft("exec", *args, **more)

    def path(self, name=""):
        return os.path.join(self.tmp.name, "weft", "default", name)

    def log(self):
        try:
            with open(self.path("log"), encoding="utf-8", errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    def up(self, *args):
        self.weft("up", *CLUSTER, *args)
        self.addCleanup(self.down)

    def down(self):
        if os.path.exists(self.path("control")):
            self.weft("down", code=None)
        until("no process is left", lambda: not marked())
        self.nothing_reported(self.path("log"))

    @staticmethod
    def nothing_reported(log):
        """A node that a sanitizer has ended is replaced by another one, so that only the log tells of it."""
        try:
            with open(log, encoding="utf-8", errors="replace") as f:
                said = f.read()
        except OSError:
            return
        if "Sanitizer" in said or ": runtime error: " in said:
            raise AssertionError(said[-20_000:])

    def status(self):
        return json.loads(self.weft("status", "--json").stdout)

    def control(self):
        """The control node, as the status shows it."""
        got = self.status()
        return [n for n in got["nodes"] if n["node"] == got["control_node"]][0]

    def control_pid(self):
        return self.control()["pid"]

    def at(self, place):
        """The newest node at a place. A control node that joined later may not know the one that is gone."""
        return ([{"node": None, "state": "unknown"}] + [n for n in self.status()["nodes"] if n["place"] == place])[-1]

    def node_beside(self):
        """Returns a node that is not the control node."""
        got = self.status()
        return [n for n in got["nodes"] if n["node"] != got["control_node"]][0]

    def all_up(self, count=3):
        until(f"{count} nodes are up", lambda: [n["state"] for n in self.status()["nodes"]] == ["up"] * count)

    def launcher(self):
        with open(f"/proc/{self.status()['nodes'][1]['pid']}/stat", encoding="ascii", errors="replace") as f:
            pid = int(f.read().rsplit(")", 1)[1].split()[1])
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        if b"--as-node" in words or b"up" not in words:
            self.fail(f"{pid} is not the launcher: {words}")
        return pid

    def sleepers(self, word):
        """Processes with this word among their arguments, except processes of weft."""
        found = []
        for pid in marked():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if word.encode() in words and not words[0].endswith(b"weft"):
                found.append(pid)
        return found


class Up(Standing):
    """One cluster for all tests of the class."""
    OPTIONS = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run([WEFT, "up", *CLUSTER, *cls.OPTIONS], env=cls.env, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        subprocess.run([WEFT, "down"], env=cls.env, check=True, timeout=LIMIT)
        until("no process is left", lambda: not marked())
        cls.nothing_reported(os.path.join(cls.tmp.name, "weft", "default", "log"))
        super().tearDownClass()


class UpAndDown(Standing):
    def test_life(self):
        out = self.weft("up", *CLUSTER)
        self.addCleanup(self.down)
        self.assertIn("is up, with 3 nodes", out.stderr)
        self.assertEqual(os.stat(self.path("control")).st_mode & 0o7777, 0o600)
        self.assertEqual(os.stat(self.path()).st_mode & 0o7777, 0o700)
        self.assertIn("is up already", self.weft("up", *CLUSTER, code=1).stderr)
        got = self.status()
        self.assertEqual((got["cluster"], [n["node"] for n in got["nodes"]]), ("default", [0, 1, 2]))
        for n in got["nodes"]:
            self.assertEqual((n["state"], n["services"], n["pool_bytes"]), ("up", ["process", "name", "net", "file"], 64 << 20))
            self.assertTrue(alive(n["pid"]))
        transport = "shm" if CLUSTER[0] == "-n" else "rc"
        self.assertEqual([(l["from"], l["to"], l["state"], l["transport"]) for l in got["links"]],
                         [(a, b, "up", transport) for a in range(3) for b in range(3) if a != b])
        text = self.weft("status").stdout
        self.assertRegex(text, r"(?m)^ *0  \S+ +0 +up +\d+ +64 MiB")
        pids = [n["pid"] for n in got["nodes"]]
        self.weft("down")
        self.assertFalse([pid for pid in pids if alive(pid)])
        self.assertFalse(os.path.exists(self.path("control")))
        self.assertEqual(marked(), [])
        for words in (["status"], ["down"], ["exec", "--", "true"], ["ps"], ["kill", "1"]):
            p = self.weft(*words, code=None)
            self.assertEqual(p.returncode, 255 if words[0] == "exec" else 1)
            self.assertIn("cluster 'default' is not up: start it with `weft up`", p.stderr)

    def test_odd_host_name(self):
        """A host's name may be any bytes: the status is valid JSON nevertheless."""
        if os.getuid() != 0 or not shutil.which("unshare"):
            self.skipTest("needs root and unshare")
        script = "import os,socket,sys\nsocket.sethostname(b'h\\xff\\xe9 ')\nos.execv(sys.argv[1], sys.argv[1:])\n"
        subprocess.run(["unshare", "--uts", sys.executable, "-c", script, WEFT, "up", "-n", "1"], env=self.env, check=True, timeout=LIMIT,
                       stdin=subprocess.DEVNULL, capture_output=True)
        self.addCleanup(self.down)
        self.assertEqual([n["host"] for n in self.status()["nodes"]], ["h?? "])
        self.assertIn('host="h?? "', self.weft("status", "--metrics").stdout)

    def test_two_clusters(self):
        self.up()
        self.weft("up", "-n", "1", "--cluster", "other")
        try:
            self.assertEqual(len(json.loads(self.weft("status", "--cluster", "other", "--json").stdout)["nodes"]), 1)
            self.assertEqual(len(self.status()["nodes"]), 3)
        finally:
            self.weft("down", "--cluster", "other")
        self.assertEqual(len(self.status()["nodes"]), 3)

    def test_many_links(self):
        """Of many links the status shows only those with something wrong, and counts the others; --json has all."""
        if CLUSTER[0] != "-n":
            return  # emulated hosts would be the same here
        self.weft("up", "-n", "22", env={**self.env, "WEFT_POOL": "8M"})
        self.addCleanup(self.down)
        text = self.weft("status").stdout
        self.assertIn(f"\n{22 * 21} links are up, without errors, and nothing was resent (--json lists them)\n", text)
        self.assertNotIn("transport", text)
        self.assertEqual(len(self.status()["links"]), 22 * 21)
        self.assertEqual(self.exec("--", "echo", "x").stdout, "x\n" * 22)

    def test_wrong_words(self):
        for words, said in ((["up"], "the cluster is missing"), (["up", "-n", "0"], "number of nodes"),
                            (["up", "-n", "1", "--metrics", "nowhere"], "ADDRESS:PORT"), (["up", "-n", "1", "x"], "unexpected argument 'x'"),
                            (["exec"], "the command is missing"), (["exec", "--env", "=x", "--", "true"], "NAME=VALUE"),
                            (["exec", "--timeout", "0", "--", "true"], "--timeout"), (["kill"], "expected one job"),
                            (["kill", "x"], "number of a job"), (["kill", "-s", "NONE", "1"], "--signal"), (["logs", "x"], "number of a job"),
                            (["exec", "-d", "-t", "--", "true"], "cannot be used with"), (["status", "x"], "unexpected")):
            self.assertIn(said, self.weft(*words, code=2).stderr, words)
        for name in ("", "../x", "a/b", "-x", ".x", "x" * 33):
            self.assertIn("cannot be the name of a cluster", self.weft("up", "-n", "1", "--cluster=" + name, code=1).stderr)

    def test_cannot_start(self):
        """The command itself prints the reason, not only the log; and no process or file is left."""
        p = self.weft("up", "-n", "2", code=None, env={**self.env, "WEFT_POOL": "none"})
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("WEFT_POOL", p.stderr)
        self.assertIn("could not be started", p.stderr)
        until("no process is left", lambda: not marked())

    def test_joining_is_not_for_up(self):
        p = self.weft("up", "-n", "1", code=1, env={**self.env, "WEFT_JOIN": f"unix:{self.tmp.name}/door"})
        self.assertIn("unset WEFT_JOIN", p.stderr)

    def test_folder_of_others(self):
        """A cluster is not started without a folder that only this user can enter; XDG_RUNTIME_DIR of another user is not used."""
        with tempfile.TemporaryDirectory(prefix="weft-up-") as tmp:
            os.mkdir(os.path.join(tmp, "weft"), 0o777)
            os.chmod(os.path.join(tmp, "weft"), 0o777)
            p = self.weft("up", "-n", "1", code=1, env={**self.env, "XDG_RUNTIME_DIR": tmp})
            self.assertIn("mode 0700", p.stderr)
            os.rmdir(os.path.join(tmp, "weft"))
            os.symlink(self.tmp.name, os.path.join(tmp, "weft"))
            self.assertIn("mode 0700", self.weft("up", "-n", "1", code=1, env={**self.env, "XDG_RUNTIME_DIR": tmp}).stderr)

    def test_foreground(self):
        p = self.start("up", *CLUSTER, "--foreground")
        self.addCleanup(self.down)
        until("the cluster is up", lambda: self.weft("status", code=None).returncode == 0)
        self.assertIsNone(p.poll())
        self.exec("--on", "2", "--", "true")
        p.send_signal(signal.SIGTERM)
        out, err = p.communicate(timeout=LIMIT)
        self.assertIn(p.returncode, (0, 128 + signal.SIGTERM), (out, err))
        until("no process is left", lambda: not marked())

    def test_here(self):
        """Each host starts its own node: two of them here, each with its own control socket."""
        coord = f"unix:{self.tmp.name}/coord"
        nodes = []
        for k in (0, 1):
            env = {**self.env, "WEFT_RANK": str(k), "WEFT_SIZE": "2", "WEFT_COORD": coord}
            nodes.append(subprocess.Popen([WEFT, "up", "--here", "--cluster", f"c{k}"], env=env, stdin=subprocess.DEVNULL))
            self.addCleanup(nodes[k].kill)
        for k in (0, 1):
            until("it is up", lambda k=k: self.weft("status", "--cluster", f"c{k}", code=None).returncode == 0)
            self.exec("--cluster", f"c{k}", "--on", str(1 - k), "--", "true")
        self.weft("down", "--cluster", "c1")
        self.assertEqual([p.wait(LIMIT) for p in nodes], [0, 0])

    def test_here_and_one_ends(self):
        """The node of one host is stopped: those of the other hosts stay."""
        nodes = []
        for k in (0, 1):
            env = {**self.env, "WEFT_RANK": str(k), "WEFT_SIZE": "2", "WEFT_COORD": f"unix:{self.tmp.name}/coord"}
            nodes.append(subprocess.Popen([WEFT, "up", "--here", "--cluster", f"c{k}"], env=env, stdin=subprocess.DEVNULL))
            self.addCleanup(nodes[k].kill)
        for k in (0, 1):
            until("it is up", lambda k=k: self.weft("status", "--cluster", f"c{k}", code=None).returncode == 0)
        self.exec("--cluster", "c0", "--on", "1", "--", "true")  # each knows the other's host
        nodes[1].send_signal(signal.SIGTERM)
        self.assertEqual(nodes[1].wait(LIMIT), 0)
        until("the other one knows it", lambda: json.loads(self.weft("status", "--cluster", "c0", "--json").stdout)["nodes"][1]["state"] == "gone")
        self.exec("--cluster", "c0", "--on", "0", "--", "true")
        self.assertIsNone(nodes[0].poll())
        self.weft("down", "--cluster", "c0")
        self.assertEqual(nodes[0].wait(LIMIT), 0)


class Exec(Up):
    OPTIONS = ("--metrics", "127.0.0.1:0")

    def test_output_and_status(self):
        p = self.exec("--on", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
        self.assertEqual((p.stdout, p.stderr), ("out\n", "err\n"))
        p = self.exec("--", "sh", "-c", "echo a; printf b")
        self.assertEqual(sorted(re.findall("a\n|b", p.stdout)), ["a\n"] * 3 + ["b"] * 3)
        p = self.exec("-t", "--", "sh", "-c", "echo one; printf two")
        lines = p.stdout.splitlines()
        self.assertEqual(len(lines), 6)
        for line in lines:
            self.assertRegex(line, r"^\[\S+\] (one|two)$")
        self.assertEqual(len({line.split("]")[0] for line in lines}), 3)
        name = lines[0][1:].split("]")[0]  # what --tag prints names this node for --on, too
        self.assertEqual(self.exec("--on", name, "--", "echo", "one").stdout, "one\n")
        self.assertIn("there is no host or node 'elsewhere:1'", self.exec("--on", "elsewhere:1", "--", "true", code=255).stderr)
        p = self.exec("--on", lines[0][1:].split(":")[0], "--", "sh", "-c", "printf a; sleep 0.3; echo b")  # all three are on this host
        self.assertEqual(p.stdout, "ab\n" * 3)
        self.exec("--", "sh", "-c", "kill -9 $$", code=128 + 9)
        self.exec("--timeout", "300ms", "--", "sleep", "1000", code=124)
        self.assertEqual(self.sleepers("1000"), [])

    def test_first_that_failed(self):
        mark = os.path.join(self.tmp.name, "turn")
        script = f'if mkdir {mark} 2>/dev/null; then exit 3; fi; sleep 1; exit 4'
        self.exec("--on", "0,2", "--", "sh", "-c", script, code=3)
        os.rmdir(mark)

    def test_quiet_for_long(self):
        """A job runs for longer than a control node may be silent: the control node sends signs of life meanwhile."""
        job = self.exec("-d", "--on", "0", "--", "sleep", "22").stdout.strip()
        waits = [self.start("exec", "--on", "1", *form, "--", "sh", "-c", "sleep 22; echo end") for form in ((), ("--json",))]
        waits.append(self.start("logs", "--follow", job))
        stays = [self.start("proxy", "--listen", "127.0.0.1:0"), self.start("publish", "--to", ":9", "127.0.0.1:0")]
        waits.append(self.start("proxy", "--", "sleep", "22"))
        said = [p.communicate(timeout=LIMIT) for p in waits]
        self.assertEqual([p.returncode for p in waits], [0, 0, 0, 0], said)
        self.assertEqual((said[0], said[2:]), ((b"end\n", b""), [(b"", b"")] * 2))
        for p in stays:
            self.assertIsNone(p.poll())
            p.terminate()
            _, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, err.count(b"\n")), (0, 1), err)
        self.assertEqual([json.loads(line)["event"] for line in said[1][0].splitlines()], ["started", "output", "ended"])

    def test_cannot_be_started(self):
        p = self.exec("--on", "0", "--", "/nonexistent/program", code=127)
        self.assertIn("node 0: '/nonexistent/program' cannot be executed: No such file", p.stderr)
        self.assertIn("no program 'no-such-program'", self.exec("--", "no-such-program", code=127).stderr)
        self.assertIn("Permission denied", self.exec("--on", "1", "--", "/etc/passwd", code=126).stderr)
        self.assertIn("/nonexistent", self.exec("--on", "1", "--cwd", "/nonexistent", "--", "true", code=127).stderr)
        self.assertIn("no host or node 'elsewhere'", self.exec("--on", "0,elsewhere", "--", "true", code=255).stderr)
        self.assertIn("no host or node '3'", self.exec("--on", "3", "--", "true", code=255).stderr)

    def test_where_and_with_what(self):
        p = self.exec("--on", "2", "--", "pwd")
        self.assertEqual(p.stdout, os.path.realpath(self.tmp.name) + "\n")
        self.assertEqual(self.exec("--on", "2", "--cwd", "/", "--", "pwd").stdout, "/\n")
        p = self.exec("--on", "0", "--env", "A=1 = 2", "--env", "HOME", "--", "sh", "-c", 'echo "$A,${HOME-none}"')
        self.assertEqual(p.stdout, "1 = 2,none\n")
        env = self.exec("--on", "1", "--", "env").stdout
        for name in ("WEFT_RANK", "WEFT_SECRET", "WEFT_COORD", "WEFT_SERVE", "WEFT_POOL"):
            self.assertNotIn(name + "=", env)
        host = self.status()["nodes"][1]["host"]
        self.assertGreaterEqual(len(self.exec("--on", host, "--", "echo", "x").stdout.split()), 1)

    def test_every_byte(self):
        """Arguments with all bytes, and an environment of a megabyte, arrive unchanged."""
        odd = [bytes(range(1, 256)), b"", b"two words", b"-x", b"$HOME `id` \\ \"'", b"\xff\xfe"]
        p = subprocess.run([WEFT, "exec", "--on", "1", "--", "printf", r"%s\0", *odd], env=self.env, capture_output=True, check=True,
                           timeout=LIMIT)
        self.assertEqual(p.stdout, b"".join(word + b"\0" for word in odd))
        changes = [f"BIG{i}={chr(97 + i) * 100_000}" for i in range(11)]
        p = self.exec("--on", "1", *(x for c in changes for x in ("--env", c)), "--", "sh", "-c", 'printf %s "$BIG0$BIG10" | wc -c; env')
        self.assertEqual(p.stdout.split("\n")[0].strip(), "200000")
        for change in changes:
            self.assertIn(change + "\n", p.stdout)

    def test_binary(self):
        """A hundred megabytes arrive unchanged, as output, and as input and output. With WEFT_TEST_LONG=1 a gigabyte."""
        count = 1000 if LONG else 100
        path = os.path.join(self.tmp.name, "big")
        block = os.urandom(1 << 20)
        with open(path, "wb") as f:
            for i in range(count):
                f.write(struct.pack("<Q", i) + block[i:])
        out = os.path.join(self.tmp.name, "out")
        for words in (["--on", "1", "--", "cat", path], ["--on", "2", "--stdin", path, "--", "cat"]):
            with open(out, "wb") as f:
                subprocess.run([WEFT, "exec", *words], env=self.env, stdout=f, check=True, timeout=10 * LIMIT, stdin=subprocess.DEVNULL)
            subprocess.run(["cmp", path, out], check=True)
        os.unlink(path)
        os.unlink(out)

    def test_input(self):
        p = self.exec("--stdin", "-", "--", "sh", "-c", "cat; echo end", text=False, input=b"first\n\0second\n")
        self.assertEqual(sorted(p.stdout.splitlines(True)), [b"\0second\n"] * 3 + [b"end\n"] * 3 + [b"first\n"] * 3)
        self.assertEqual(self.exec("--on", "0", "--", "cat").stdout, "")
        p = self.exec("--on", "0", "--stdin", "/nonexistent", "--", "cat", code=255)
        self.assertIn("--stdin /nonexistent", p.stderr)
        # One that does not read holds up nothing.
        p = self.exec("--stdin", "-", "--on", "0", "--", "true", text=False, input=os.urandom(3_000_000))
        self.assertEqual(p.stdout, b"")

    def test_json(self):
        p = self.exec("--json", "--on", "1", "--", "sh", "-c", r"echo text; sleep 0.3; printf '\377\0' >&2; exit 2", code=2)
        events = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([e["event"] for e in events], ["started", "output", "output", "ended"])
        self.assertEqual((events[1]["stream"], events[1]["text"]), ("stdout", "text\n"))
        self.assertEqual((events[2]["stream"], base64.b64decode(events[2]["base64"])), ("stderr", b"\xff\0"))
        self.assertEqual((events[3]["status"], events[3]["node"]), (2, 1))
        p = self.exec("--json", "--on", "0", "--cwd", b"/no text \xff", "--", "true", code=127)
        self.assertIn("'/no text ?'", json.loads(p.stdout)["error"])

    def test_as_it_comes(self):
        p = self.start("exec", "--on", "1", "--", "sh", "-c", "echo now; sleep 600")
        self.assertEqual(p.stdout.readline(), b"now\n")
        p.kill()
        p.communicate()
        until("its processes have ended", lambda: not self.sleepers("600"))

    def test_killed(self):
        """When the command is killed, all that it has started is killed, too, even programs that ignore signals."""
        p = self.start("exec", "--", "sh", "-c", "trap '' TERM INT HUP; sleep 601 & wait; sleep 601")
        until("all run", lambda: len(self.sleepers("601")) == 3)
        p.kill()
        p.communicate()
        until("its processes have ended", lambda: not self.sleepers("601"))
        until("the job is gone", lambda: all(j["detached"] for j in json.loads(self.weft("ps", "--json").stdout)))

    def test_interrupted(self):
        """The first Ctrl-C reaches all programs; the second one ends also those that ignore it."""
        p = self.start("exec", "--", "sh", "-c", "sleep 602")
        until("all run", lambda: len(self.sleepers("602")) == 3)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGINT)
        self.assertEqual(self.sleepers("602"), [])
        p = self.start("exec", "--", "sh", "-c", "trap '' INT; sleep 603; sleep 603")
        until("all run", lambda: len(self.sleepers("603")) == 3)
        p.send_signal(signal.SIGINT)
        time.sleep(0.3)
        self.assertEqual(len(self.sleepers("603")), 3)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGKILL)
        until("its processes have ended", lambda: not self.sleepers("603"))

    def test_forks_and_outlives(self):
        """The command ends with its program. Processes that the program leaves in its group are killed; processes that have left the group
        do not delay the command."""
        self.exec("--on", "1", "--", "sh", "-c", "sleep 604 & exit 0")
        until("its processes have ended", lambda: not self.sleepers("604"))
        p = self.exec("--on", "1", "--", "sh", "-c", "setsid sleep 605 & sleep 0.2; echo done")
        self.assertEqual(p.stdout, "done\n")
        for pid in self.sleepers("605"):
            os.kill(pid, signal.SIGKILL)

    def test_nobody_reads(self):
        """The reader of the output ends (| head -1): the command ends, and with it what it runs."""
        p = self.start("exec", "--on", "0", "--", "sh", "-c", "while echo line of 606; do :; done")
        p.stdout.readline()
        p.stdout.close()
        self.assertEqual(p.wait(LIMIT), 128 + signal.SIGPIPE)
        p.stderr.close()
        # One that does not read now is waited for, and holds up no other.
        p = self.start("exec", "--on", "0", "--", "sh", "-c", "head -c 30000000 /dev/zero")
        time.sleep(0.3)
        self.assertIsNone(p.poll())
        self.exec("--on", "0", "--", "true")
        self.assertEqual(len(p.communicate(timeout=LIMIT)[0]), 30_000_000)

    def test_nobody_reads_and_interrupted(self):
        """If nobody takes the output, the second signal ends the command, while the program runs and when it has ended."""
        def full(p):
            return struct.unpack("i", fcntl.ioctl(p.stdout, termios.FIONREAD, bytes(4)))[0] >= 1 << 16
        runs = self.start("exec", "--on", "1", "--", "sh", "-c", "while :; do head -c 100000 /dev/zero; done", "628")
        over = self.start("exec", "--on", "1", "--", "sh", "-c", "head -c 100000 /dev/zero; exit 0", "629")
        until("both pipes are full", lambda: full(runs) and full(over))
        until("the job is over", lambda: not [j for j in json.loads(self.weft("ps", "--json").stdout) if "629" in j["command"].split()])
        time.sleep(0.5)  # usually, the first command takes no more now
        for p in runs, over:
            p.send_signal(signal.SIGINT)
            until("it has handled the signal", lambda p=p: not processes.pending(p.pid, signal.SIGINT))
            p.send_signal(signal.SIGTERM)
        self.assertEqual((runs.wait(LIMIT), over.wait(LIMIT)), (128 + signal.SIGINT, -signal.SIGTERM))
        for p in runs, over:
            p.stdout.close()
            self.assertEqual(p.stderr.read(), b"")
            p.stderr.close()
        until("all have ended", lambda: not self.sleepers("628") and not self.sleepers("629"))

    def test_reads_slowly(self):
        """All output arrives at a reader that takes a little now and then, although the program has ended long before."""
        p = self.start("exec", "--on", "1", "--", "sh", "-c", "head -c 2000000 /dev/zero; exit 0", "615")
        got = len(p.stdout.read(500_000))
        while self.sleepers("615"):
            got += len(p.stdout.read(50_000))
            time.sleep(0.1)  # not faster than the program, which would be the last then
        for _ in range(7):
            got += len(p.stdout.read(100_000))
            time.sleep(1.2)
        got += len(p.stdout.read())  # not communicate(), which would not see what p.stdout has read ahead
        err = p.communicate(timeout=LIMIT)[1]
        self.assertEqual((got, p.returncode, err), (2_000_000, 0, b""))

    def test_input_after_the_end(self):
        """Input that comes when the program has ended, and when its output was not read yet, does not keep the command from reading."""
        # What the command, its output and its socket hold, and some more, which the control node still has.
        p = self.start("exec", "--on", "1", "--stdin", "-", "--", "sh", "-c", "head -c 700000 /dev/zero; exit 0", "617", stdin=subprocess.PIPE)
        out = p.stdout.fileno()
        got, looks = len(os.read(out, 1000)), 0
        while "running" in [j["state"] for j in json.loads(self.weft("ps", "--json").stdout) if "617" in j["command"].split()]:
            looks += 1
            got += len(os.read(out, 20_000)) if looks % 10 == 0 else 0
            time.sleep(0.1)
        os.set_blocking(p.stdin.fileno(), False)
        last = time.monotonic()
        while time.monotonic() - last < 0.5:  # until the command takes no more
            try:
                os.write(p.stdin.fileno(), bytes(4096))
                last = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        while some := os.read(out, 1 << 20):
            got += len(some)
        p.stdin.close()
        err = p.stderr.read()
        self.assertEqual((got, p.wait(LIMIT), err), (700_000, 0, b""))
        p.stdout.close()
        p.stderr.close()

    def test_kills_although_nobody_reads(self):
        """weft kill also ends a program that ignores SIGTERM and whose output the command does not take."""
        p = self.start("exec", "--on", "1", "--", "sh", "-c", "trap '' TERM; while :; do head -c 100000 /dev/zero; done", "616")
        until("it runs", lambda: self.sleepers("616"))
        job = [j["job"] for j in json.loads(self.weft("ps", "--json").stdout) if j["state"] == "running"]
        time.sleep(1)  # the command takes no more now
        self.weft("kill", str(job[0]))
        until("it has ended", lambda: not self.sleepers("616"))
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGKILL)

    def test_many_at_once(self):
        running = [self.start("exec", "--", "sh", "-c", f"echo {k}; exit {k % 5}") for k in range(20)]
        for k, p in enumerate(running):
            out, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, out, err), (k % 5, f"{k}\n".encode() * 3, b""))

    def test_many_in_turn(self):
        """Many runs, four at a time (10,000 with WEFT_TEST_LONG=1): each does what it should, and the control node keeps nothing of them."""
        count = 10_000 if LONG else 400
        def some(start):
            for k in range(start, count, 4):
                p = subprocess.run([WEFT, "exec", "--on", str(k % 3), "--", "sh", "-c", f"echo {k}; exit {k % 7}"], env=self.env,
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)
                self.assertEqual((p.returncode, p.stdout, p.stderr), (k % 7, f"{k}\n", ""))
        def held():
            pid = self.status()["nodes"][self.status()["control_node"]]["pid"]
            return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
        self.exec("--", "true")
        before = held()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(some, range(4)))
        self.assertEqual([j for j in self.status()["jobs"] if not j["detached"]], [])
        def back():
            files, threads = held()
            return files <= before[0] and threads <= before[1] + 1  # one more may be about to end
        until("all is given back", back)

    def test_detached(self):
        job = self.exec("-d", "--", "sh", "-c", "echo begun; echo oops >&2; sleep 607").stdout.strip()
        until("all run", lambda: len(self.sleepers("607")) == 3)
        until("all have said so", lambda: self.weft("logs", job).stdout.count("begun\n") == 3)
        self.assertEqual(self.weft("logs", job).stderr.count("oops\n"), 3)
        self.assertRegex(self.weft("logs", "-t", job).stdout, r"(?m)^\[[^\]\s:]+:2\] begun$")
        lines = self.weft("exec", "--tag", "--", "echo", "begun").stdout
        self.assertEqual(sorted(self.weft("logs", "--tag", job).stdout.splitlines()), sorted(lines.splitlines()))
        listed = [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]
        self.assertEqual((listed["state"], [t["status"] for t in listed["tasks"]]), ("running", [None] * 3))
        self.assertRegex(self.weft("ps").stdout, rf"(?m)^ *{job} +2 +\d+ +- +\d+  sh -c echo begun")
        follow = self.start("logs", "--follow", job)
        self.weft("kill", job)
        out, _ = follow.communicate(timeout=LIMIT)
        self.assertEqual((follow.returncode, out.count(b"begun\n")), (0, 3))
        listed = [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]
        self.assertEqual((listed["state"], [t["status"] for t in listed["tasks"]]), ("ended", [143] * 3))
        self.assertIn("there is no job 4000000", self.weft("kill", "4000000", code=1).stderr)
        self.assertIn("there is no job 4000000", self.weft("logs", "4000000", code=1).stderr)
        self.assertIn("no-such-program", self.exec("-d", "--", "no-such-program", code=127).stderr)

    def test_logs_of_an_attached_job(self):
        """The output of an attached job is not kept: `weft logs` says where it goes."""
        p = self.start("exec", "--", "sh", "-c", "echo begun; sleep 623")
        until("all run", lambda: len(self.sleepers("623")) == 3)
        job = [str(j["job"]) for j in json.loads(self.weft("ps", "--json").stdout) if "623" in j["command"]][0]
        for form in ((), ("--follow",)):
            said = self.weft("logs", *form, job, code=1)
            self.assertEqual(said.stdout, "")
            self.assertIn(f"job {job} was started without --detach, so its output goes to the command that started it", said.stderr)
        self.weft("kill", job)
        out, _ = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, out.count(b"begun")), (143, 3))

    def test_stubborn(self):
        """A program that ignores SIGTERM is killed after 5 seconds."""
        job = self.exec("-d", "--on", "1", "--", "sh", "-c", "trap '' TERM; sleep 608; sleep 608").stdout.strip()
        until("it runs", lambda: self.sleepers("608"))
        self.weft("kill", "-s", "USR2", "--", job)
        until("it has ended", lambda: not self.sleepers("608"))
        job = self.exec("-d", "--on", "1", "--", "sh", "-c", "trap '' TERM; while :; do sleep 609; done").stdout.strip()
        until("it runs", lambda: self.sleepers("609"))
        began = time.monotonic()
        self.weft("kill", job)
        until("it has ended", lambda: not self.sleepers("609"))
        self.assertGreater(time.monotonic() - began, 4)

    def test_kept_output(self):
        """If a detached job prints much, the newest megabyte is kept."""
        job = self.exec("-d", "--on", "1", "--", "sh", "-c", "head -c 5000000 /dev/zero; echo end").stdout.strip()
        until("it has ended", lambda: [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]["state"] == "ended")
        out = self.weft("logs", job).stdout
        self.assertTrue(out.endswith("end\n"))
        self.assertLessEqual(len(out), 1 << 20)
        self.assertGreater(len(out), 1 << 18)
        job = [j for j in json.loads(self.weft("ps", "--json").stdout) if j["job"] == int(job)][0]
        self.assertEqual(len(out) + job["dropped_bytes"], 5_000_004)

    def test_what_jobs_keep(self):
        """Detached jobs that have ended keep their output, and neither pool nor descriptors; at most 64 of them."""
        def used():
            node = self.control()
            return node["pool_live_bytes"], len(os.listdir(f"/proc/{node['pid']}/fd"))
        time.sleep(1.1)  # the pool's figures are of the last second
        before = used()
        jobs = [self.exec("-d", "--", "echo", str(k)).stdout.strip() for k in range(70)]
        until("all have ended", lambda: all(j["state"] == "ended" for j in json.loads(self.weft("ps", "--json").stdout)))
        self.assertEqual(len([j for j in json.loads(self.weft("ps", "--json").stdout)]), 64)
        self.assertEqual(self.weft("logs", jobs[-1]).stdout, "69\n" * 3)
        self.assertIn("there is no job", self.weft("logs", jobs[0], code=1).stderr)
        until("all is given back", lambda: used()[0] <= before[0] + (1 << 20) and used()[1] <= before[1] + 4)

    def test_wrong_bytes(self):
        """Bytes that are no request get an error text, or no answer; and the cluster goes on."""
        head = b"weftctl1" + struct.pack("<IIqIIIIII", 4, 0, 0, 0, 0, 0, 1, 0, 0)
        for payload in (b"", b"GET / HTTP/1.1\r\n\r\n", struct.pack("<IIII", 1, 1 << 31, 0, 0), struct.pack("<IIII", 1, 3, 0, 0) + b"abc",
                        struct.pack("<IIII", 1, len(head), 0, 0) + head, struct.pack("<IIII", 1, len(head) + 2, 0, 0) + head + b"\0\0",
                        struct.pack("<IIII", 1, len(head) + 3, 0, 0) + head + b"\0\0\0", os.urandom(1000)):
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(LIMIT)
                s.connect(self.path("control"))
                s.sendall(payload)
                s.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while piece := s.recv(4096):
                        answer += piece
                except ConnectionResetError:
                    pass
                if len(answer) >= 16:
                    self.assertEqual(struct.unpack("<I", answer[:4])[0], 9)  # CONTROL_ERROR
        # Detached, with input.
        strings = b"\0" + b"true\0"
        head = b"weftctl1" + struct.pack("<IIqIIIIII", 4, 3, 0, 0, 0, 0, 1, 0, 0)
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(LIMIT)
            s.connect(self.path("control"))
            s.sendall(struct.pack("<IIII", 1, len(head + strings), 0, 0) + head + strings)
            self.assertIn(b"it gives input to a detached job", s.recv(4096, socket.MSG_WAITALL))
        # Nonsense behind a request ends what was asked for.
        strings = b"\0" + b"sleep\0" + b"610\0"
        head = b"weftctl1" + struct.pack("<IIqIIIIII", 4, 0, 0, 0, 0, 0, 2, 0, 0)
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.path("control"))
            s.sendall(struct.pack("<IIII", 1, len(head + strings), 0, 0) + head + strings)
            until("all run", lambda: len(self.sleepers("610")) == 3)
            s.sendall(struct.pack("<IIII", 77, 5, 0, 0) + b"hello")
            until("its processes have ended", lambda: not self.sleepers("610"))
        self.exec("--", "true")

    def test_another_user(self):
        """Another user can neither enter the folder nor connect to the socket; and even with access to the folder, the control node refuses
        that user."""
        if os.getuid() != 0 or not shutil.which("setpriv"):
            self.skipTest("needs root and setpriv")
        other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        script = ("import socket,sys\ns=socket.socket(socket.AF_UNIX)\ntry:\n s.connect(sys.argv[1])\nexcept OSError as e:\n print(e)\n"
                  " sys.exit(9)\ns.sendall(bytes.fromhex(sys.argv[2]))\nprint(s.recv(4096))\n")
        head = b"weftctl1" + struct.pack("<IIqIIIIII", 4, 0, 0, 0, 0, 0, 2, 0, 0) + b"\0touch\0" + self.path("touched").encode() + b"\0"
        request = (struct.pack("<IIII", 1, len(head), 0, 0) + head).hex()
        word = [*other, sys.executable, "-c", script, "control", request]  # from within: the folders above are closed, too
        p = subprocess.run(word, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=self.path())
        self.assertEqual((p.returncode, "denied" in p.stdout), (9, True), p)
        try:
            os.chmod(self.path(), 0o755)
            os.chmod(self.path("control"), 0o666)
            p = subprocess.run(word, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=self.path())
            self.assertIn("this cluster belongs to user 0", p.stdout)
            self.assertFalse(os.path.exists(self.path("touched")))
            self.assertIn("mode 0700", self.weft("status", code=1).stderr)
        finally:
            os.chmod(self.path("control"), 0o600)
            os.chmod(self.path(), 0o700)

    def test_programs(self):
        """weft run and weft map start their nodes by the cluster, also where there is no ssh; they join, and end with their launcher."""
        env = {**self.env, "WEFT_SSH": "/nonexistent"}
        p = self.weft("run", "--cluster", "default", "--", WEFT, "topo", "--as-node", "--json", "--time", "1ms", env=env)
        got = json.loads(p.stdout)
        self.assertEqual([(l["from"], l["to"], l["state"]) for l in got["links"]], [(a, b, "up") for a in range(3) for b in range(3) if a != b])
        self.assertEqual({l["transport"] for l in got["links"]}, {"shm" if CLUSTER[0] == "-n" else "rc"})
        p = self.weft("run", "--cluster", "default", "-n", "5", "-t", "--", "sh", "-c", "echo $WEFT_RANK; exit $WEFT_RANK", env=env, code=None)
        self.assertIn(p.returncode, (1, 2, 3, 4))
        self.assertEqual(sorted(p.stdout.splitlines()), [f"[{k}] {k}" for k in range(5)])
        self.assertRegex(p.stderr, r"node 1 \(on standing node [012]\) exited with 1")
        if CLUSTER[0] == "-n":
            path = os.path.join(self.tmp.name, "lines")
            with open(path, "w", encoding="ascii") as f:
                f.writelines(f"{k}\n" for k in range(200_000))
            out = self.weft("map", "--cluster", "default", "--block", "100K", path, "--", "cat", env=env).stdout
            with open(path, encoding="ascii") as f:
                self.assertEqual(out, f.read())
            # Files of the cluster's hosts, by the numbers of `weft status` and by name. A relative path begins in this folder.
            host = json.loads(self.weft("status", "--json").stdout)["nodes"][0]["host"]
            for file in f"2:{path}", f"{host}:{path}", f"1:{os.path.relpath(path)}":
                self.assertEqual(self.weft("map", "--cluster", "default", "--block", "100K", file, "--", "cat", env=env).stdout, out, file)
            self.assertIn("'5' is neither a host nor", self.weft("map", "--cluster", "default", f"5:{path}", "--", "cat", env=env, code=2).stderr)
            os.unlink(path)
        run = self.start("run", "--cluster", "default", "--", "sleep", "614")
        until("all run", lambda: len(self.sleepers("614")) == 3)
        run.kill()
        run.communicate()
        until("its processes have ended", lambda: not self.sleepers("614"))
        self.assertIn("cannot be used with --hostfile", self.weft("run", "--cluster", "default", "--hostfile", "x", "true", code=2).stderr)
        self.assertIn("cluster 'none' is not up", self.weft("run", "--cluster", "none", "true", code=1).stderr)

    def test_map_reads_once(self):
        """A map over the cluster: all its nodes work on a file of one host, most pieces fail once, and the node of that host has read the file
        once, for all."""
        pieces = 20
        path, done, begun, counted = (os.path.join(self.tmp.name, name) for name in ("lines", "done", "begun", "counted"))
        with open(path, "w", encoding="ascii") as f:
            f.writelines(f"{k:07}\n" for k in range(1_000_000))
        size = os.path.getsize(path)
        got = self.status()
        here = got["control_node"]
        nodes = [n["node"] for n in got["nodes"]]  # in the order of the map's nodes, once the node of this host is the first
        k = nodes.index(here)
        nodes[0], nodes[k] = nodes[k], nodes[0]
        for home in 0, 2:
            for file in done, begun, counted:
                open(file, "w", encoding="ascii").close()
            # The node with the file has one piece, and ends it last: all others get their pieces from it. Where a piece was tried first, it fails.
            command = f"""
                if [ {{node}} = {home} ]; then
                    echo >>{begun}; wc -c
                    until [ $(grep -c + {done}) -ge {pieces - 1} ]; do sleep 0.02; done
                    grep rchar: /proc/$PPID/io >{counted}
                else
                    until [ -s {begun} ]; do sleep 0.02; done
                    if grep -qx "{{#}}" {done}; then wc -c; echo {{#}}+ >>{done}; else echo {{#}} >>{done}; exit 1; fi
                fi"""
            out = self.weft("map", "--cluster", "default", "--block", str(size // pieces), "--slots", "1", "--retries", "5",
                            f"{nodes[home]}:{path}", "--", "sh", "-c", command).stdout
            self.assertEqual(len(out.splitlines()), pieces)
            self.assertEqual(sum(int(line) for line in out.splitlines()), size)
            with open(counted, encoding="ascii") as f:
                count = int(f.read().split()[1])
            self.assertGreater(count, size - 3 * size // pieces)
            self.assertLess(count, size * 5 // 4)

    def metrics_address(self):
        """Finds the port where the node serves HTTP, because the test asked for any free port. libfabric listens at other ports, where it
        accepts a connection and may never answer: all are asked at once."""
        with contextlib.ExitStack() as stack:
            asked = {}
            for address in self.listens_at():
                host, port = address.split(":")
                s = stack.enter_context(socket.create_connection((host, int(port)), LIMIT))
                s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                asked[s] = address
            while ready := select.select(list(asked), [], [], LIMIT)[0]:
                for s in ready:
                    address = asked.pop(s)
                    with contextlib.suppress(ConnectionError):
                        if s.recv(5) == b"HTTP/":
                            return address
        raise AssertionError("no port answers")

    def listens_at(self):
        pid = self.control_pid()
        inodes = set()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
            except OSError:
                pass
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as f:
            for line in f.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes and words[1].startswith("0100007F"):
                    yield "127.0.0.1:" + str(int(words[1].split(":")[1], 16))

    def test_metrics(self):
        address = self.metrics_address()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT) as page:
            self.assertTrue(page.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            text = page.read().decode()
        self.assertEqual(text.count("weft_node_up{"), 3)
        self.assertIn('weft_pool_bytes{node="2"} 67108864\n', text)
        self.assertEqual(len(re.findall(r'(?m)^weft_link_up\{from="\d",to="\d",transport="\w+"\} 1$', text)), 6)
        names = set(re.findall(r"(?m)^(\w+)[{ ]", text))
        for name in names:
            self.assertRegex(text, rf"(?m)^# HELP {name} \w.*\n# TYPE {name} (gauge|counter)$")
        self.assertEqual(self.weft("status", "--metrics").stdout.count("weft_node_up{"), 3)
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{address}/else", timeout=LIMIT)
        if shutil.which("promtool"):
            subprocess.run(["promtool", "check", "metrics"], input=text, text=True, check=True, timeout=LIMIT)


class Links(Up):
    """What `weft status` says about the traffic between nodes. Not below Exec: that would run all of its tests again."""

    def link(self, got, a, b):
        return [l for l in got["links"] if (l["from"], l["to"]) == (a, b)][0]

    def rate(self, a, b):
        time.sleep(0.5)  # few looks, because each look is traffic, too
        return self.link(self.status(), a, b)["bytes_per_second"]

    def quiet(self, a, b):
        """Whether nothing but the looks themselves moves bytes."""
        before = self.link(self.status(), a, b)["bytes"]
        time.sleep(2)  # a page is written anew every second
        return self.link(self.status(), a, b)["bytes"] - before < 100_000

    def test_bytes_are_counted(self):
        """Output of programs, which no put or get of the program itself moves, counts for the direction in which it goes."""
        here, there = self.control()["node"], self.node_beside()["node"]
        if CLUSTER[0] == "-n":  # shared memory counts nothing, and says so
            until("all links are shown", lambda: len(self.status()["links"]) == 6)
            link = self.link(self.status(), there, here)
            self.assertEqual((link["transport"], link["bytes"], link["bytes_per_second"]), ("shm", None, None))
            self.assertRegex(self.weft("status").stdout, r"(?m)^ +\d +\d +up +shm +- +- +0 +0$")
            self.assertNotIn("weft_link_bytes_total{", self.weft("status", "--metrics").stdout)
            return
        sent, least = self.start("exec", "--on", str(there), "--", "sh", "-c", "while :; do head -c 1000000 /dev/zero; done"), 50_000_000
        sink = open(os.devnull, "wb")
        self.addCleanup(sink.close)
        taken = threading.Thread(target=shutil.copyfileobj, args=(sent.stdout, sink))
        taken.start()
        try:
            until("a rate is shown", lambda: self.rate(there, here) > 100_000)
            until("its bytes are shown", lambda: self.link(self.status(), there, here)["bytes"] >= least)
        finally:
            sent.send_signal(signal.SIGTERM)
            taken.join()
            sent.communicate(timeout=LIMIT)
        counted = self.link(self.status(), there, here)["bytes"]
        self.exec("--on", str(there), "--", "head", "-c", str(least), "/dev/zero")
        until("another 50 MB are shown", lambda: self.link(self.status(), there, here)["bytes"] >= counted + least)
        back = self.link(self.status(), here, there)["bytes"]
        self.exec("--stdin", "-", "--on", str(there), "--", "sh", "-c", "cat >/dev/null", input="x" * least)
        until("its input is shown in the other direction", lambda: self.link(self.status(), here, there)["bytes"] >= back + least)
        # Reading the other node's page is a get: that node sends the bytes, and this one counts them. Messages are much fewer bytes.
        until("all that was sent is shown", lambda: self.quiet(there, here))
        read, polls = self.link(self.status(), there, here)["bytes"], 200
        for _ in range(polls):
            self.status()
        until("the bytes of gets are shown", lambda: time.sleep(0.5) or self.link(self.status(), there, here)["bytes"] - read >= polls * 1000)
        self.assertRegex(self.weft("status", "--metrics").stdout, rf'(?m)^weft_link_bytes_total\{{from="{there}",to="{here}",transport="(rc|tb)"\}} \d{{8,}}$')


class Log(Standing):
    def test_it_is_kept_and_bounded(self):
        """The launcher's messages about nodes are in the log, also after the end of the cluster; when the log is full, a new one begins,
        and the old one is kept."""
        self.up()
        follow = self.start("logs", "--follow")
        nodes = self.status()["nodes"]
        with open(self.path("log"), "a", encoding="ascii") as f:
            f.write(("x" * 1023 + "\n") * 4096)
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        until("the log begins anew", lambda: os.path.exists(self.path("log.1")))
        self.assertEqual(os.stat(self.path("log")).st_mode & 0o777, 0o600)
        until("the launcher has said it", lambda: "the node at place 1 of this host (pid" in self.weft("logs").stdout)
        self.assertLess(os.path.getsize(self.path("log")), 1 << 20)
        self.assertIn("was killed by SIGKILL", self.weft("logs").stdout)
        until("it catches the signal", lambda: processes.catches(follow.pid, signal.SIGINT))
        follow.send_signal(signal.SIGINT)
        out, _ = follow.communicate(timeout=LIMIT)
        self.assertEqual(follow.returncode, 128 + signal.SIGINT)
        self.assertGreaterEqual(out.count(b"x" * 1023), 1)
        self.down()
        self.assertIn("was killed by SIGKILL", self.weft("logs").stdout)
        self.assertIn("no-such", self.weft("logs", "--cluster", "no-such", code=1).stderr)

    def test_a_full_disk(self):
        """Lines that cannot be written to the log are lost; later lines, when it can be written again, are not."""
        self.weft("up", *CLUSTER, preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        self.addCleanup(self.down)
        nodes = self.status()["nodes"]
        pid = self.launcher()
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        until("the launcher has seen it", lambda: not os.path.exists(f"/proc/{nodes[1]['pid']}"))
        time.sleep(0.2)  # and, usually, has tried to write it
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        os.kill(nodes[2]["pid"], signal.SIGKILL)
        until("the log goes on", lambda: "the node at place 2 of this host (pid" in self.log())
        self.exec("--on", "0", "--", "true")

    def test_watch(self):
        self.up()
        watch = self.start("status", "--watch")
        seen = b""
        while seen.count(b"0 jobs\n") < 2:
            seen += watch.stdout.readline()
        watch.send_signal(signal.SIGTERM)
        watch.communicate(timeout=LIMIT)
        self.assertEqual(watch.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
