#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft run: exit codes, tags, signals, time-outs, and that no process or file is left.

Usage: test_run.py PATH-OF-WEFT [TEST...]
"""
import ctypes
import functools
import json
import math
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import processes
from processes import alive, clean_env, patience, state

WEFT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/src/cli/weft"
SOFTVERBS = os.path.abspath(os.path.join(os.path.dirname(WEFT), "../../softverbs/cli/softverbs"))
LIMIT = patience(60)  # seconds until a wait that should have ended is called a failure
until = functools.partial(processes.until, limit=LIMIT)
started = []  # processes to be ended after a test that failed


def start(*args, **kw):
    kw.setdefault("stdin", subprocess.DEVNULL)
    kw.setdefault("stdout", subprocess.PIPE)
    kw.setdefault("stderr", subprocess.PIPE)
    kw.setdefault("env", clean_env())
    p = subprocess.Popen([WEFT, "run", *args], text=True, **kw)
    started.append(p)
    return p


def run(*args, **kw):
    data = kw.pop("input", None)
    p = start(*args, **({"stdin": subprocess.PIPE} if data is not None else {}), **kw)
    out, err = p.communicate(data, timeout=LIMIT)
    return p.returncode, out, err


class Base(unittest.TestCase):
    """Processes of the nodes write their numbers into files of self.dir."""

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="run-test-")
        self.dir = self.temp.name

    def tearDown(self):
        for p in started:
            if p.poll() is None:
                p.kill()
                p.wait()
            for stream in (p.stdin, p.stdout, p.stderr):
                if stream:
                    stream.close()
        started.clear()
        self.temp.cleanup()

    def pids(self, count):
        """The numbers in files named pid.*, once there are `count` of them."""
        def read():
            found = []
            for name in os.listdir(self.dir):
                if name.startswith("pid."):
                    with open(os.path.join(self.dir, name)) as f:
                        text = f.read().split()
                    found += [int(t) for t in text]
            return found if len(found) >= count else None
        return until(f"{count} processes have started", read)

    def gone(self, pids):
        until("all processes have ended", lambda: not any(alive(p) for p in pids))

    # A node that writes its process ID to a file, then runs $1.
    def node(self, then, trap=""):
        return ["sh", "-c", f"{trap} echo $$ > {self.dir}/tmp.$WEFT_RANK; "
                            f"mv {self.dir}/tmp.$WEFT_RANK {self.dir}/pid.$WEFT_RANK; {then}"]


SLEEP = "while :; do sleep 0.05; done"


class ExitCodes(Base):
    def test_success(self):
        self.assertEqual(run("-n", "3", "--", "true"), (0, "", ""))

    def test_environment(self):
        code, out, err = run("-n", "3", "--pool", "64M", "--", "sh", "-c",
                             "echo $WEFT_RANK $WEFT_SIZE $WEFT_POOL $WEFT_COORD $WEFT_SECRET")
        self.assertEqual((code, err), (0, ""))
        lines = sorted(line.split() for line in out.splitlines())
        self.assertEqual([l[:3] for l in lines], [[str(i), "3", "64M"] for i in range(3)])
        self.assertEqual(len({l[3] for l in lines}), 1)
        self.assertEqual(len({l[4] for l in lines}), 1)
        self.assertRegex(lines[0][3], "^unix:")
        self.assertEqual(len(lines[0][4]), 64)

    def test_gpus(self):
        def seen(*options, devices="4,7,GPU-9", nodes=4):
            code, out, err = run("-n", str(nodes), "-t", *options, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES",
                                 env={**os.environ, "CUDA_VISIBLE_DEVICES": devices})
            return code, sorted(out.splitlines()), err
        self.assertEqual(seen("--gpus", "1"), (0, ["[0] 4", "[1] 7", "[2] GPU-9", "[3] 4"], ""))
        self.assertEqual(seen("--gpus", "2", nodes=2), (0, ["[0] 4,7", "[1] GPU-9,4"], ""))
        self.assertEqual(seen(nodes=1), (0, ["[0] 4,7,GPU-9"], ""))
        for devices, gpus, why in (("0", "2", "this machine has only 1 GPU that nodes may use"), ("", "1", "no NVIDIA GPU"),
                                   ("0", "0", "expected a number of GPUs"), ("0", "x", "expected a number of GPUs")):
            code, lines, err = seen("--gpus", gpus, devices=devices)
            self.assertNotEqual(code, 0)
            self.assertIn(why, err)
            self.assertEqual(lines, [])

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_softverbs(self):
        script = "echo $SOFTVERBS_HOST $WEFT_TRANSPORT $SOFTVERBS_DIR; ls $SOFTVERBS_DIR"
        rc, out, err = run("-n", "2", "--softverbs", "switch:3", "--", "sh", "-c", script)
        self.assertEqual((rc, err), (0, ""))
        lines = sorted(out.split("\n"))
        fabric = [line.split() for line in lines if " rdma " in line]
        self.assertEqual([f[0] for f in fabric], ["0", "1"])
        self.assertEqual(lines.count("weft"), 2)
        self.assertFalse(os.path.exists(fabric[0][2]), "the fabric stayed behind")

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_softverbs_of_a_killed_launcher(self):
        p = start("-n", "1", "--softverbs", "mesh:2", "--", "sh", "-c", "echo $SOFTVERBS_DIR; exec sleep 60")
        directory = p.stdout.readline().strip()
        self.assertTrue(os.path.isdir(directory))
        p.kill()
        until("the fabric of a killed launcher is gone", lambda: not os.path.exists(directory))

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_softverbs_ended_at_once(self):
        """The launcher is killed at any moment, also while the fabric is made: the fabric's directory is removed."""
        where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
        mark = "MARK_OF_THIS_TEST=" + self.dir

        def fabrics():
            return {name for name in os.listdir(where) if re.fullmatch("weft-[0-9a-f]{16}", name)}

        def of_others():
            """The fabrics of nodes that other tests have started."""
            found = set()
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/environ", "rb") as f:
                        words = f.read().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if mark not in words:
                    found |= {os.path.basename(w) for w in words if w.startswith("SOFTVERBS_DIR=")}
            return found

        before = fabrics()
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            for moment in range(0, 30, 3):
                p = start("-n", "2", "--softverbs", "switch:4", "--", "sleep", "60", env=clean_env(MARK_OF_THIS_TEST=self.dir))
                time.sleep(moment / 1000)
                p.send_signal(sig)
                code = p.wait(LIMIT)
                self.assertIn(code, (-sig, 128 + sig))
        seen = fabrics() - before
        until("no directory is left", lambda: not (left := seen & fabrics()) or not left - of_others())

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_softverbs_counts_and_refusals(self):
        rc, out, err = run("--softverbs", "mesh:3", "--", "sh", "-c", "echo $WEFT_RANK of $WEFT_SIZE")  # a node a host
        self.assertEqual((rc, sorted(out.split("\n")), err), (0, ["", "0 of 3", "1 of 3", "2 of 3"], ""))
        for text, word in (("blimp:3", "switch:N"), ("mesh:2", "2 hosts"), ("switch:0", "switch:N"), ("ring:4:", "profile")):
            rc, out, err = run("-n", "3", "--softverbs", text, "--", "true")
            self.assertEqual((rc, out), (2, ""), text)
            self.assertIn(word, err)
        rc, _, err = run("-n", "3", "--softverbs", "switch:3:nosuch", "--", "true")
        self.assertEqual(rc, 1)
        self.assertIn("nosuch", err)

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_softverbs_of_a_file(self):
        """Nodes run on the hosts that the file names, in its order; the default profile differs between cables and a switch."""
        def written(name, text):
            with open(os.path.join(self.dir, name), "w", encoding="utf-8") as f:
                f.write(text if isinstance(text, str) else json.dumps(text))
            return os.path.join(self.dir, name)

        hosts = [{"name": n, "devices": ["en2", "en3"]} for n in ("left", "middle", "right")]
        cabled = {"hosts": hosts, "cables": [{"from": "left/en2", "to": "middle/en2"}, {"from": "middle/en3", "to": "right/en2"}]}
        script = f"echo $WEFT_RANK $SOFTVERBS_HOST $({SOFTVERBS} ls --json | grep -o '\"profile\": *\"[^\"]*\"')"

        def ran(topology, *more, where="."):
            job = subprocess.run([WEFT, "run", *more, "--softverbs", topology, "--", "sh", "-c", script], cwd=where, env=clean_env(),
                                 capture_output=True, text=True, timeout=LIMIT, check=False)
            self.assertEqual((job.returncode, job.stderr), (0, ""))
            return sorted(line.replace('"', "").replace(":", "").split() for line in job.stdout.splitlines())

        names = [[str(rank), name, "profile"] for rank, name in enumerate(("left", "middle", "right"))]
        lab = written("lab.json", cabled)
        odd = written("a:b", {"hosts": ["x", "y"], "switch": True})
        self.assertEqual(ran(lab), [n + ["tb5"] for n in names])
        self.assertEqual(ran(lab + ":tb5-strict", "-n", "2"), [n + ["tb5-strict"] for n in names[:2]])
        self.assertEqual(ran("lab.json:generic", where=self.dir), [n + ["generic"] for n in names])
        self.assertEqual(ran(odd), [["0", "x", "profile", "generic"], ["1", "y", "profile", "generic"]])
        self.assertEqual([line[1] for line in ran("chain:3")], ["0", "1", "2"])
        written("chain", cabled)  # the name of a built-in topology means that topology, even if there is a file of that name
        self.assertEqual([line[1] for line in ran("chain:2", where=self.dir)], ["0", "1"])
        for text, code, word in ((os.path.join(self.dir, "none.json"), 2, "there is no such file"), (self.dir, 2, "not a regular file"),
                                 (written("bad", "{\n,"), 2, "bad:2: expected JSON"), (written("none", "[]"), 2, 'object with "hosts"'),
                                 (written("much", {"hosts": ["h"] * 257}), 2, "found 257"), (lab + ":", 2, "profile's name is empty"),
                                 (lab + ":tb6", 1, "did you mean 'tb5'"), (written("twice", {"hosts": ["x", "x"]}), 1, "are both named"),
                                 (written("odd", {"hosts": [7]}), 1, "hosts[0]"), ("chain:1", 1, "from 2 to 256")):
            rc, out, err = run("--softverbs", text, "--", "true")
            self.assertEqual((rc, out), (code, ""), err)
            self.assertIn(word, err)
        rc, _, err = run("-n", "4", "--softverbs", lab, "--", "true")
        self.assertEqual(rc, 2)
        self.assertIn("has 3 hosts, but there are 4 nodes", err)

    def test_secret_of_the_user_is_kept(self):
        code, out, _ = run("-n", "1", "--", "sh", "-c", "echo $WEFT_SECRET", env=clean_env(WEFT_SECRET="mine"))
        self.assertEqual((code, out), (0, "mine\n"))

    def test_empty_secret_is_refused(self):
        code, out, err = run("-n", "1", "--", "echo", "x", env=clean_env(WEFT_SECRET=""))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("WEFT_SECRET is set but empty", err)

    def test_first_failure_counts_and_the_others_go_on(self):
        # Nodes 0 and 2 go on when the launcher has seen node 1's end: then there is no such process any more. 2 is the last.
        code, out, err = run("-n", "3", "--", "sh", "-c",
                             f"cd {self.dir}; test $WEFT_RANK != 1 || {{ echo $$ >new; mv new one; exit 7; }}; "
                             "until test -e one; do sleep 0.01; done; while kill -0 $(cat one) 2>/dev/null; do sleep 0.01; done; "
                             "echo on; test $WEFT_RANK != 2 || exit 9")
        self.assertEqual(code, 7)
        self.assertEqual(out, "on\non\n")
        self.assertRegex(err, r"^weft run: node 1 \(pid \d+\) exited with 7\n"
                              r"weft run: node 2 \(pid \d+\) exited with 9\n$")

    def test_killed_node(self):
        code, _, err = run("-n", "2", "--", "sh", "-c", "test $WEFT_RANK = 0 || kill -9 $$")
        self.assertEqual(code, 137)
        self.assertRegex(err, r"^weft run: node 1 \(pid \d+\) was killed by SIGKILL\n$")

    def test_kill_on_failure(self):
        # Node 1 waits for node 2: a failure before all are started would end fewer.
        code, _, err = run("-n", "3", "--kill-on-failure", "--", "sh", "-c", f"echo > {self.dir}/$WEFT_RANK; "
                           f"test $WEFT_RANK = 1 || exec sleep 1000; "
                           f"until test -e {self.dir}/0 -a -e {self.dir}/2; do sleep 0.01; done; exit 5")
        self.assertEqual(code, 5)
        self.assertIn("exited with 5", err)
        self.assertIn("ending nodes 0 and 2", err)

    def test_program_missing(self):
        code, out, err = run("-n", "2", "--", "no-such-program")
        self.assertEqual((code, out), (127, ""))
        self.assertEqual(err, "weft run: could not start no-such-program: No such file or directory\n")

    def test_program_not_usable(self):
        path = os.path.join(self.dir, "x")
        with open(path, "w") as f:
            f.write("echo no first line\n")
        self.assertEqual(run("-n", "2", path)[0], 126)
        os.chmod(path, 0o700)
        code, _, err = run("-n", "2", path)
        self.assertEqual(code, 126)
        self.assertIn("#!/bin/sh", err)
        self.assertEqual(run("-n", "2", self.dir)[0], 126)
        with open(path, "w") as f:
            f.write("#!/no/such/interpreter\n")
        code, _, err = run("-n", "2", path)
        self.assertEqual(code, 127)
        self.assertIn("its interpreter '/no/such/interpreter', which its first line names, does not exist", err)

    def test_too_few_open_files(self):
        """The launcher fails for lack of a resource: its exit status and message do not blame the program."""
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))
        code, out, err = run("-n", "2", "--", "true", preexec_fn=few)
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("Too many open files", err)

    def test_path_is_searched(self):
        path = os.path.join(self.dir, "found-in-path")
        with open(path, "w") as f:
            f.write("#!/bin/sh\necho found $1\n")
        os.chmod(path, 0o700)
        code, out, _ = run("-n", "1", "found-in-path", "me",
                           env=clean_env(PATH=f"/nonexistent:{self.dir}:" + os.environ["PATH"]))
        self.assertEqual((code, out), (0, "found me\n"))

    def test_usage(self):
        for args in ([], ["-n", "2"], ["-n", "0", "true"], ["-n", "1025", "true"], ["-n", "x", "true"], ["true"],
                     ["-n", "2", "--timeout", "never", "true"], ["-n", "2", "--pool", "big", "true"],
                     ["-n", "2", "--nonsense", "true"], ["-n"]):
            code, out, err = run(*args)
            self.assertEqual((code, out), (2, ""), args)
            self.assertIn("weft run", err)
        code, out, err = run("--help")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Usage: weft run", out)

    def test_pool_out_of_range(self):
        for size in ("100", "0", "17T", "1023K"):
            code, out, err = run("-n", "1", "--pool", size, "--", "echo", "x")
            self.assertEqual((code, out), (2, ""), size)
            self.assertIn(f"--pool '{size}': expected a size from 1M to 16T", err)

    def test_many_nodes(self):
        code, out, _ = run("-n", "64", "--tag", "--", "sh", "-c", "echo $WEFT_RANK")
        self.assertEqual(code, 0)
        self.assertEqual(sorted(out.splitlines()), sorted(f"[{i}] {i}" for i in range(64)))


class Hostfiles(Base):
    def file(self, content):
        path = os.path.join(self.dir, "hosts.json")
        with open(path, "w") as f:
            json.dump(content, f)
        return path

    def test_local_hosts(self):
        path = self.file({"weft": 1, "hosts": [{"ssh": "localhost", "slots": 2}, {"ips": ["127.0.0.1"]}, {"ips": []}]})
        code, out, err = run("--hostfile", path, "--", "sh", "-c", "echo $WEFT_SIZE $WEFT_HOSTFILE")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out, f"4 {path}\n" * 4)
        code, out, _ = run("--", "sh", "-c", "echo $WEFT_SIZE", env=clean_env(WEFT_HOSTFILE=path))
        self.assertEqual((code, out), (0, "4\n" * 4))
        # A hostfile from a pipe, which can be read only once: each node still gets all of it.
        with open(path, "rb") as f:
            text = f.read()
        reader, writer = os.pipe()
        os.write(writer, text)
        os.close(writer)
        code, out, err = run("--hostfile", f"/dev/fd/{reader}", "--", "sh", "-c", "cat $WEFT_HOSTFILE", pass_fds=[reader])
        os.close(reader)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.encode(), text * out.encode().count(text))
        self.assertGreaterEqual(out.encode().count(text), 2)

    def test_host_under_another_name(self):
        path = self.file({"hosts": [{"host": "example.org"}, {"host": "localhost"}]})
        code, out, err = run("--hostfile", path, "--", "echo", "x")
        self.assertEqual((code, out), (1, ""))
        self.assertIn(f'{path}:1: hosts[0]: expected "ssh", "ips" or "rdma"', err)

    def test_wrong_count(self):
        path = self.file([{"ssh": "localhost"}])
        self.assertEqual(run("-n", "2", "--hostfile", path, "true")[0], 2)

    def test_bad_file(self):
        path = self.file({"weft": 1, "hosts": [{"slot": 2}]})
        code, _, err = run("--hostfile", path, "true")
        self.assertEqual(code, 1)
        self.assertIn(f"{path}:1: hosts[0].slot:", err)


class Output(Base):
    def test_tags(self):
        code, out, err = run("-n", "3", "-t", "--", "sh", "-c",
                             'echo out $WEFT_RANK; echo err $WEFT_RANK >&2; printf "half "; sleep 0.1; echo line; '
                             'printf "no end"')
        self.assertEqual(code, 0)
        want = [f"[{i}] {t}" for i in range(3) for t in (f"out {i}", "half line", "no end")]
        self.assertEqual(sorted(out.splitlines()), sorted(want))
        self.assertTrue(out.endswith("\n"))
        self.assertEqual(sorted(err.splitlines()), [f"[{i}] err {i}" for i in range(3)])

    def test_long_and_many_lines(self):
        script = ("import os,sys\nr=os.environ['WEFT_RANK']\n"
                  "for i in range(2000): sys.stdout.write(r*(i%300)+'\\n')\n"
                  "sys.stdout.write(r*300000+'\\n')\n")
        code, out, err = run("-n", "3", "-t", "--", sys.executable, "-c", script)
        self.assertEqual((code, err), (0, ""))
        for r in "012":
            mine = [l[4:] for l in out.splitlines() if l.startswith(f"[{r}] ")]
            self.assertEqual(mine, [r * (i % 300) for i in range(2000)] + [r * 300000])

    def test_reader_gone(self):
        p = start("-n", "2", "-t", "--", "yes")
        p.stdout.readline()
        p.stdout.close()
        err = p.stderr.read()
        self.assertEqual((p.wait(LIMIT), err), (141, ""))
        p.stderr.close()

    def test_full_disk(self):
        for program in (["echo", "x"], ["yes"]):  # one ends before the closed output is noticed, the other after
            with open("/dev/full", "w") as full:
                code, _, err = run("-n", "2", "-t", "--", *program, stdout=full)
            self.assertEqual((code, err), (1, "weft run: cannot write to standard output: No space left on device\n"))

    def test_closed_files(self):
        """Writing to a closed descriptor fails as usual, although weft run keeps /dev/null in its place."""
        code, _, err = run("-n", "1", "-t", "--", "echo", "x", preexec_fn=lambda: os.close(1))
        self.assertEqual((code, err), (1, "weft run: cannot write to standard output: Bad file descriptor\n"))
        code, _, err = run("-n", "1", "--", "cat", preexec_fn=lambda: os.close(0))
        self.assertEqual(code, 1)
        self.assertIn("Bad file descriptor", err)

    def test_slow_reader_does_not_block_signals(self):
        for command in (["yes"], ["sh", "-c", "trap '' TERM; exec yes"]):  # ended by the first signal, or by the second
            p = start("-n", "2", "-t", "--", *command)
            p.stdout.readline()  # read no more, so both pipes fill
            time.sleep(0.3)
            p.send_signal(signal.SIGTERM)
            until = time.monotonic() + LIMIT
            while p.poll() is None and time.monotonic() < until:  # on a busy machine two signals may arrive as one
                time.sleep(0.1)
                p.send_signal(signal.SIGTERM)
            self.assertEqual(p.wait(LIMIT), 143, command)
            p.stdout.close()
            p.stderr.close()

    def test_stdin(self):
        code, out, _ = run("-n", "3", "-t", "cat", input="hello\n")
        self.assertEqual((code, out), (0, "[0] hello\n"))

    def test_terminal_is_not_read(self):
        master, slave = pty.openpty()
        code, out, _ = run("-n", "2", "cat", stdin=slave)
        os.close(master)
        os.close(slave)
        self.assertEqual((code, out), (0, ""))

    def test_escaped_process_does_not_hold_the_launcher(self):
        code, out, _ = run("-n", "1", "-t", "--", "sh", "-c",
                           f"setsid sh -c 'echo $$ > {self.dir}/pid.0; exec sleep 1000' & "
                           f"until test -s {self.dir}/pid.0; do sleep 0.01; done; echo done")
        pids = self.pids(1)
        for p in pids:
            os.kill(p, signal.SIGKILL)
        self.assertEqual((code, out), (0, "[0] done\n"))


class Ending(Base):
    def test_signals_are_passed(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for name in os.listdir(self.dir):
                os.unlink(os.path.join(self.dir, name))
            p = start("-n", "3", *self.node(SLEEP, trap=f"trap 'echo got; exit 0' {sig.name[3:]};"))
            pids = self.pids(3)
            p.send_signal(sig)
            out, err = p.communicate(timeout=LIMIT)
            self.assertEqual((p.returncode, out), (0, "got\n" * 3), sig)
            self.assertNotIn("weft run:", err)  # a shell may print that its sleep was ended
            self.gone(pids)

    def test_interrupt_ends_nodes(self):
        p = start("-n", "3", *self.node("exec sleep 1000"))
        pids = self.pids(3)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 130)
        self.gone(pids)

    def test_second_interrupt_kills(self):
        p = start("-n", "2", *self.node(SLEEP, trap="trap '' INT;"))
        pids = self.pids(2)
        p.send_signal(signal.SIGINT)
        time.sleep(0.3)
        self.assertTrue(all(alive(x) for x in pids))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 130)
        self.gone(pids)

    def test_grace_ends(self):
        p = start("-n", "2", *self.node(SLEEP, trap="trap '' TERM;"))
        pids = self.pids(2)
        p.send_signal(signal.SIGTERM)
        _, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 143)
        self.assertIn("nodes 0 and 1 did not end within 5 s of SIGTERM, and were killed", err)
        self.gone(pids)

    def test_ctrl_c_on_a_terminal(self):
        master, slave = pty.openpty()

        def child():
            os.setsid()
            import fcntl
            import termios
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        p = start("-n", "2", *self.node(SLEEP, trap="trap '' INT;"), stdin=slave, preexec_fn=child)
        pids = self.pids(2)
        os.write(master, b"\x03")
        time.sleep(0.3)
        os.write(master, b"\x03")
        p.communicate(timeout=LIMIT)
        os.close(master)
        os.close(slave)
        self.assertEqual(p.returncode, 130)
        self.gone(pids)

    def test_timeout(self):
        seconds = math.ceil(patience(5))  # in this time node 1 ends
        p = start("-n", "3", "--timeout", f"{seconds}s", *self.node("test $WEFT_RANK = 1 && exit 0; exec sleep 1000"))
        pids = self.pids(3)
        _, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 124)
        self.assertEqual(err, f"weft run: timed out after {seconds} s (--timeout): nodes 0 and 2 were still running\n")
        self.gone(pids)

    def test_grandchildren_end_with_their_node(self):
        # Each node leaves a child in the background and ends.
        code, _, _ = run("-n", "2", "--", "sh", "-c",
                         f"sleep 1000 & echo $! > {self.dir}/pid.$WEFT_RANK; exit 0", stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        self.assertEqual(code, 0)
        self.gone(self.pids(2))

    def test_killed_launcher_leaves_nothing(self):
        for tag in ([], ["-t"]):
            for name in os.listdir(self.dir):
                os.unlink(os.path.join(self.dir, name))
            p = start("-n", "3", *tag, "--", "sh", "-c",
                      f"sleep 1000 & echo $$ $! > {self.dir}/tmp.$WEFT_RANK; "
                      f"mv {self.dir}/tmp.$WEFT_RANK {self.dir}/pid.$WEFT_RANK; wait")
            pids = self.pids(6)
            with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
                children = [int(x) for x in f.read().split()]
            self.assertEqual(len(children), 4)  # three nodes and the keeper
            p.kill()
            p.communicate(timeout=LIMIT)
            self.gone(set(pids + children))

    def test_killed_launcher_early(self):
        for delay in (0, 0.001, 0.002, 0.004, 0.008):
            p = start("-n", "16", "--", "sleep", "1000")
            time.sleep(delay)
            p.kill()
            p.communicate(timeout=LIMIT)  # ends when the last process that holds its output has ended

    def test_stop_and_go_on(self):
        p = start("-n", "2", *self.node("exec sleep 1000"))  # a shell would be in vfork() now and then: not in T
        pids = self.pids(2)
        p.send_signal(signal.SIGTSTP)
        until("launcher and nodes have stopped", lambda: all(state(x) == "T" for x in [p.pid, *pids]))
        p.send_signal(signal.SIGCONT)
        until("they go on", lambda: all(state(x) != "T" for x in [p.pid, *pids]))
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=LIMIT)
        self.gone(pids)

    def test_no_busy_waiting(self):
        p = start("-n", "2", "-t", *self.node("exec sleep 1000"))
        self.pids(2)

        def cpu():
            with open(f"/proc/{p.pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        before = cpu()
        time.sleep(1)
        used = cpu() - before
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=LIMIT)
        self.assertLessEqual(used, 10)  # ticks: a loop that spins uses a hundred

    def test_ignored_signals_stay_ignored(self):
        p = start("-n", "1", *self.node("sleep 0.5; echo survived"), preexec_fn=lambda: signal.signal(
            signal.SIGHUP, signal.SIG_IGN))
        self.pids(1)
        p.send_signal(signal.SIGHUP)
        out, _ = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, out), (0, "survived\n"))


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup sets it to be ignored, and then no shell can trap it
    if not sys.platform.startswith("linux"):
        print("reads /proc: Linux only")
        sys.exit(77)
    # Orphans of a killed launcher become children of this process, because the machine's first process may not reap them.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    sys.argv = sys.argv[:1] + sys.argv[2:]
    unittest.main()
