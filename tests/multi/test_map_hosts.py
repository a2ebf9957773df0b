#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft map with each node on a host of its own: emulated hosts (--softverbs), and hosts of a hostfile with a script instead of ssh.
Some tests of test_map.py, unchanged, and tests that only apply to nodes on separate hosts.

Usage: test_map_hosts.py PATH-OF-WEFT [TEST...]    (started by over_softverbs.py, for the devices of --hostfile)
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
import stand_in  # noqa: E402
import test_map  # noqa: E402
from stand_in import SSH  # noqa: E402
from processes import alive  # noqa: E402
from test_map import LIMIT, Map, environment, marked, patience, read, rng, seed, until  # noqa: E402


START = os.getcwd()
start_here = test_map.start


def start(*args, **kw):
    """Like test_map.start(), with each node on an emulated host of its own."""
    hosts = ["--softverbs", "switch:8"] if "--hostfile" not in args else []
    nodes = ["--nodes", "3"] if hosts and "--nodes" not in args else []
    return start_here(*hosts, *nodes, *args, **kw)


def rank_of(pid):
    """The rank of a job's node that is this process; None: the process is not a node."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            found = [v for v in f.read().split(b"\0") if v.startswith(b"WEFT_RANK=")]
        with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
            return int(found[0][10:]) if found and f.read() == "weft\n" else None
    except OSError:
        return None


def nodes_of(job):
    """The processes of a job's nodes, by rank."""
    try:
        with open(f"/proc/{job}/task/{job}/children", encoding="utf-8") as f:
            return {rank: pid for pid in map(int, f.read().split()) if (rank := rank_of(pid)) is not None}
    except OSError:
        return {}


class Hosts(Map):
    def setUp(self):
        test_map.start = start
        self.addCleanup(lambda: setattr(test_map, "start", start_here))

    def slow_until(self, path):
        """The command of piece 1 waits for a file; all others are quick."""
        return ["sh", "-c", f"cat; [ {{#}} != 1 ] || until [ -e {path} ]; do sleep 0.01; done"]

    def node(self, job, rank):
        return until(f"node {rank} runs", lambda: nodes_of(job.pid).get(rank))

    # --- bytes ---

    def test_everything_elsewhere(self):
        """Node 0 runs no piece: all input is sent to other hosts, and all outputs back."""
        busy = "[ {node} = 0 ] && sleep 2; cat"
        for block in ("100K", "1M"):
            self.check(Map.bytes, "--slots", "1", "--block", block, Map.text, "--", "sh", "-c", busy)
        self.check(Map.bytes, "--slots", "1", "--block", "1M", "-", "--", "sh", "-c", busy, input=Map.bytes)

    def test_more_than_memory(self):
        """Pieces and outputs larger than the pools: they use temporary files at both nodes."""
        data = Map.bytes * 10
        path = self.path("large", data)
        small = ["--memory", "20M", "--slots", "1"]
        for block in ("1M", "8M", "25M"):
            self.check(data, *small, "--block", block, path, "--", "sh", "-c", "[ {node} = 0 ] && sleep 1; cat")
        self.check(data, *small, "--block", "10M", "-", "--", "sh", "-c", "[ {node} = 0 ] && sleep 1; cat", input=data)
        code, out, err = test_map.run(*small, "--block", "25M", "--kernel", "wc", path)
        self.assertEqual((code, out.split()), (0, test_map.theirs(path, "wc").split()), err)
        # Outputs that are not printed yet wait, even if there is no room for them at the owner.
        go = self.path("go")
        job = start(*small, "--block", "1M", path, "--", *self.slow_until(go))
        time.sleep(0.5)  # not needed for the result: the longer it sleeps, the fuller the pools get
        open(go, "w", encoding="utf-8").close()
        self.addCleanup(os.unlink, go)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual((job.returncode, out == data), (0, True), err)

    def test_what_commands_see(self):
        """Commands get no variables of the emulation or of the nodes."""
        env = environment(LD_PRELOAD="/none/of/this.so", SOFTVERBS_DIR="of the user's")
        job = start_here("--softverbs", "switch:3", "--block", "1M", "--slots", "1", Map.text, "--", "sh", "-c",
                         "[ {node} = 0 ] && sleep 0.1; env", env=env)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 0, err)
        seen = dict(line.split("=", 1) for line in out.decode().splitlines() if "=" in line)
        self.assertEqual({k: v for k, v in seen.items() if k.startswith(("WEFT_", "SOFTVERBS_", "LD_PRELOAD", "ASAN"))
                          and k != "WEFT_TEST_MARK"}, {k: v for k, v in env.items() if k.startswith(("SOFTVERBS_", "LD_PRELOAD",
                                                                                                  "ASAN"))})
        self.assertEqual(seen.get("LD_LIBRARY_PATH"), env.get("LD_LIBRARY_PATH"))

    def test_direct_cables(self):
        """Devices that can only send and receive, each with a cable to one neighbour."""
        # If two nodes of a ring left at the same time, the node between them would be cut off and wait for its deadline, longer than this test may
        # take. Several rounds, because it is a race.
        env = environment(WEFT_DEADLINE="10m")
        for topology in "mesh:3:tb5", "mesh:4:tb5-strict", *["ring:5:tb5-strict"] * 8:
            job = start_here("--softverbs", topology, "--memory", "80M", "--slots", "1", "--block", "100K", Map.text, "--",
                             "sh", "-c", "[ {node} = 0 ] && sleep 0.1; cat", env=env)
            out, err = job.communicate(timeout=LIMIT)
            self.assertEqual((job.returncode, out == Map.bytes, err), (0, True, b""), topology)

    def test_kernels_elsewhere(self):
        for kernel, command in (("wc", ["wc"]), ("grep:e", ["grep", "-aF", "e"])):
            for block in ("100K", "3M"):
                self.check(test_map.theirs(Map.text, *command), "--kernel", kernel, "--block", block, Map.text)

    # --- the end of nodes ---

    def test_other_nodes_killed(self):
        """One node or all other nodes are killed at random moments: the job succeeds, and its output is the same to the byte."""
        for victims in ([1], [2], [1, 2], [1, 2]):
            job = start("--nodes", "3", "--slots", "2", "--block", "50K", "--stats-file", self.path("stats"), Map.text, "--",
                        "sh", "-c", "sleep 0.01; cat")
            pids = [self.node(job, rank) for rank in victims]
            # Before all nodes have joined, the job cannot lose one. The first outputs show that they have joined.
            first = os.read(job.stdout.fileno(), 1)
            time.sleep(rng.random() / 5)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            out, err = job.communicate(timeout=LIMIT)
            self.assertEqual((job.returncode, first + out == Map.bytes), (0, True), err)
            with open(self.path("stats"), encoding="utf-8") as f:
                died = json.load(f)["nodes_died"]
            self.assertEqual(err.count(b"is gone; its pieces run again elsewhere"), died, err)
        os.unlink(self.path("stats"))

    def test_cut_off(self):
        """In a ring of four, both neighbours of one node are killed: it is alive, but there is no route to it. Early, when most of its outputs
        have not reached the owner, and late."""
        env = environment(WEFT_LIVENESS="1s")
        block = len(Map.bytes) // 60
        moments = {"its first pieces are complete": 1, "half of all are": 30}
        for moment, count in moments.items():
            with self.subTest(moment):
                done = self.path("done", b"")
                job = start_here("--softverbs", "ring:4:tb5", "--slots", "2", "--block", str(block), Map.text, "--", "sh", "-c",
                                 f"cat; echo {{node}} >>{done}; sleep 0.2", env=env)
                pids = {rank: self.node(job, rank) for rank in (1, 2, 3)}
                first = os.read(job.stdout.fileno(), 1)
                until(moment, lambda: read(done).count(b"\n") >= count and b"2\n" in read(done))
                for rank in (1, 3):
                    os.kill(pids[rank], signal.SIGKILL)
                out, err = job.communicate(timeout=LIMIT)
                self.assertEqual((job.returncode, first + out == Map.bytes), (0, True), err)
                self.assertIn(b"weft map: node 2 cannot be reached any more; its pieces run again elsewhere\n", err)
                until("node 2 has ended", lambda: not alive(pids[2]))
                os.unlink(done)

    def test_killed_with_outputs_not_printed(self):
        """All but the first piece are complete, and wait at the nodes that ran them, when one of these dies."""
        data = Map.bytes * 5
        path = self.path("large", data)
        go, done = self.path("go"), self.path("done", b"")
        command = self.slow_until(go)
        command[2] += f"; echo {{#}} {{node}} >>{done}"
        job = start("--memory", "40M", "--slots", "2", "--block", "500K", path, "--", *command)
        pieces = len(data) // 500_000
        until("most pieces are complete", lambda: read(done).count(b"\n") >= pieces - 8)
        os.kill(self.node(job, 1), signal.SIGKILL)
        open(go, "w", encoding="utf-8").close()
        self.addCleanup(os.unlink, go)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual((job.returncode, out == data), (0, True), err)

    def test_owner_node_killed(self):
        job = self.slow_job()
        os.kill(self.node(job, 0), signal.SIGKILL)
        self.assertEqual(job.wait(LIMIT), 128 + signal.SIGKILL)
        until("all is gone", lambda: not marked())

    # --- hosts of a hostfile ---

    def hostfile(self, *others):
        """A hostfile with this machine and others, whose names end with the number of their emulated host."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        hosts = [{"ssh": "localhost", "ips": ["127.0.0.1"]}] + [{"ssh": name} for name in others]
        text = json.dumps({"weft": 1, "coord": f"127.0.0.1:{port}", "hosts": hosts})
        ssh = self.path("ssh", SSH.replace("env -i", f"env -i WEFT_TEST_MARK={test_map.MARK}").encode())
        os.chmod(ssh, 0o755)
        library = os.path.join(START, os.environ["WEFT_VERBS_LIBRARY"])
        env = environment(WEFT_SSH=ssh, WEFT_VERBS_LIBRARY=library, SOFTVERBS_HOST="0")
        self.addCleanup(lambda: os.path.exists(ssh + ".log") and os.unlink(ssh + ".log"))
        return {"args": ["--hostfile", self.path("hosts.json", text.encode())], "env": env}

    def there(self, *numbers):
        return self.hostfile(*(f"user@host-{n}.invalid-{n}" for n in numbers))

    def test_hostfile(self):
        hosts = self.there(1, 2)
        self.check(Map.bytes, *hosts["args"], "--block", "100K", Map.text, "--", "cat", env=hosts["env"])
        self.check(test_map.theirs(Map.text, "wc"), *hosts["args"], "--kernel", "wc", Map.text, env=hosts["env"])
        odd = ["", "two words", "it's", '"$HOME" `id` \\', "new\nline", "*", "~", "{#} {file}"]
        out = b"".join(f"<{word}>".encode() for word in odd[:-1]) + f"<1 {Map.text}>\n".encode()
        busy = '[ {node} = 0 ] && sleep 2; printf "<%s>" "$@"; echo'
        self.check(out, *hosts["args"], "--block", "1G", Map.text, "--", "sh", "-c", busy, "sh", *odd, env=hosts["env"])
        # Commands do not get the variables of nodes.
        code, out, _ = test_map.run(*hosts["args"], "--block", "100K", Map.text, "--", "env", env=hosts["env"])
        self.assertEqual(code, 0)
        for name in (b"WEFT_RANK", b"WEFT_SECRET", b"WEFT_COORD", b"WEFT_SIZE"):
            self.assertNotIn(name, out)

    def test_file_of_one_host(self):
        """A file that only host 1 can see, in a mount namespace of its own. All nodes work on it, most pieces fail once, and its node has read it
        from the disk once."""
        if subprocess.run(["unshare", "-r", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("no mount namespaces")
        hidden, shown = self.folder("hidden"), self.folder("shown")
        with open(os.path.join(hidden, "text"), "wb") as f:
            f.write(Map.bytes)
        hosts = self.there(1, 2)
        ssh = hosts["env"]["WEFT_SSH"]
        script = read(ssh).decode()
        apart = stand_in.APART or "unshare -r"
        begin = "sh -c \""
        self.assertEqual(script.count(begin), 1)
        script = script.replace("exec " + stand_in.APART, f"exec {apart} --mount").replace(
            begin, f"{begin}[ ${{host##*-}} != 1 ] || mount --bind {hidden} {shown} || exit 1;")
        self.path("ssh", script.encode())
        done, begun, counted = self.path("done", b""), self.path("begun", b""), self.path("counted", b"")
        for file in "1:" + shown + "/text", "host-1.invalid-1:" + shown + "/text":
            for path in done, begun, counted:
                open(path, "w", encoding="utf-8").close()
            self.assertFalse(os.path.exists(shown + "/text"))
            block = len(Map.bytes) // 20
            pieces = len(test_map.run("--block", str(block), "--dry-run", hidden + "/text")[1].splitlines()) - 1
            # Node 1 has one piece, and ends it last. Where a piece was tried first, it fails.
            command = f'''
                if [ {{node}} = 1 ]; then
                    echo >>{begun}; cat
                    until [ $(grep -c + {done}) -ge {pieces - 1} ]; do sleep 0.02; done
                    grep rchar: /proc/$PPID/io >{counted}
                else
                    until [ -s {begun} ]; do sleep 0.02; done
                    if grep -qx "{{#}}" {done}; then cat; echo {{#}}+ >>{done}; else echo {{#}} >>{done}; exit 1; fi
                fi'''
            code, out, err = test_map.run(*hosts["args"], "--block", str(block), "--slots", "1", "--retries", "5", "--stats", file, "--", "sh", "-c",
                                          command, env=hosts["env"])
            self.assertEqual((code, out == Map.bytes), (0, True), err)
            count = int(read(counted).split()[1])
            self.assertGreater(count, len(Map.bytes) - 3 * block, err)
            self.assertLess(count, len(Map.bytes) * 5 // 4, err)
        name = shown + "/text"
        # Pieces larger than memory, kernels, the name in arguments, and files of several hosts.
        data = Map.bytes * 10
        with open(os.path.join(hidden, "large"), "wb") as f:
            f.write(data)
        for block in "1M", "25M":
            self.check(data, *hosts["args"], "--memory", "20M", "--slots", "1", "--block", block, f"1:{shown}/large", "--", "cat", env=hosts["env"])
        code, out, err = test_map.run(*hosts["args"], "--kernel", "wc", f"1:{shown}/large", env=hosts["env"])
        self.assertEqual((code, out.split()), (0, test_map.theirs(hidden + "/large", "wc").split()), err)
        self.check(Map.bytes * 2, *hosts["args"], "--block", "100K", Map.text, f"1:{name}", "--", "cat", env=hosts["env"])
        self.check(f"1:{name}\n".encode(), *hosts["args"], "--block", "1G", f"1:{name}", "--", "sh", "-c", "echo {file}", env=hosts["env"])
        # What is wrong.
        for file, says in ((f"2:{name}", "text at node 2: No such file"), (f"7:{name}", "'7' is neither a host nor the number of a node"),
                           (f"1:{shown}", "this is a directory"), (name, f"cannot open {name}: No such file")):
            code, out, err = test_map.run(*hosts["args"], file, "--", "cat", env=hosts["env"])
            self.assertNotEqual(code, 0)
            self.assertIn(says, err)
        _, err = start_here(f"1:{name}", "--", "cat").communicate(timeout=LIMIT)
        self.assertIn(b"give --cluster or --hostfile", err)

    def test_a_stopped_node_holds_up_only_itself(self):
        """Over TCP, what is put to a stopped node stays under way. The others get the rest of the file all the same. One of the node's
        commands stops it, while its other slots wait for bytes."""
        pieces, slots, block = 40, 4, 8 << 20  # so large that slots wait for bytes most of the time
        path, go, begun, done = self.path("input", b""), self.path("go"), self.path("begun", b""), self.path("done", b"")
        os.truncate(path, pieces * block)
        once, counted = os.path.join(self.folder("once"), "once"), self.path("counted", b"")
        hosts = self.there(1, 2)
        command = f'''
            case {{node}} in
                0) until [ -e {go} ]; do sleep 0.02; done ;;
                2) echo >>{counted}; [ $(wc -l <{counted}) -ge 5 ] && mkdir {once} 2>/dev/null && {{ echo $PPID >{begun}; kill -STOP $PPID; }} ;;
            esac
            wc -c; echo >>{done}'''
        job = start(*hosts["args"], "--exact", "--block", str(block), "--slots", str(slots), path, "--", "sh", "-c", command,
                    env={**hosts["env"], "WEFT_TRANSPORT": "ofi", "WEFT_LIVENESS": "600s"})
        until("node 2 works", lambda: read(begun).count(b"\n"))
        stopped = int(read(begun).split()[0])
        try:
            until("the others have got the rest", lambda: len(read(done)) >= pieces - 2 * slots)
        finally:
            os.kill(stopped, signal.SIGCONT)
            open(go, "w", encoding="utf-8").close()
            self.addCleanup(os.unlink, go)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual((job.returncode, out.split()), (0, [str(block).encode()] * pieces), err)

    def test_file_names_with_colons(self):
        """A file of this host goes before one of another host with the same name."""
        os.chdir(self.folder("colons"))
        self.addCleanup(os.chdir, START)
        with open("1:here", "wb") as f:
            f.write(b"here\n")
        self.check(b"here\n", "1:here", "--", "cat")
        with open("there", "wb") as f:
            f.write(b"there\n" * 100)
        self.check(b"there\n" * 100, "--block", "50", "2:there", "--", "cat")
        self.check(b"there\n" * 200, "--block", "50", "there", "0:there", "--", "cat")

    def test_many_files_of_another_host(self):
        """As many files as fit into a command line; where that is not the limit, a sentence tells what is."""
        folder = self.folder("many")
        for i in range(20_000):
            with open(os.path.join(folder, str(i)), "w", encoding="utf-8") as f:
                f.write(f"{i}\n")
        os.chdir(folder)
        self.addCleanup(os.chdir, START)
        job = start("--nodes", "2", "--kernel", "wc", *(f"1:{i}" for i in range(20_000)))
        out, err = job.communicate(timeout=4 * LIMIT)
        self.assertEqual((job.returncode, out.split()), (0, [b"20000", b"20000", b"108890"]), err)
        code, _, err = test_map.run(*["1:a"] * 131_072, "--", "cat")
        self.assertEqual((code, err.splitlines()[0]), (2, "weft map: 131072 files: a job with files of other hosts can have at most 131071; "
                                                          "give fewer, or run `weft map` on the host that has them"))
        # The command line has just room: there is none for what the launcher adds.
        name, fits, too_many = "1:" + "a" * 200, 0, 131_072
        while too_many - fits > 1:
            n = (fits + too_many) // 2
            try:
                subprocess.run(["true", *[name] * n], env=environment(), check=True)
                fits = n
            except OSError:
                too_many = n
        code, _, err = test_map.run(*[name] * (fits - 10), "--", "cat")
        self.assertEqual(code, 126, err)
        self.assertIn("give fewer or shorter arguments, or raise the limit: ulimit -s", err)

    def test_file_replaced(self):
        """A file of another host is replaced, or becomes shorter, during the job: no piece has bytes of the new file. Pieces fail, unless the node
        has the old file open."""
        for way in "replaced", "shortened":
            with self.subTest(way):
                path, go, begun = self.path("changing", b"old\n" * 50_000), self.path("go"), self.path("begun", b"")
                job = start("--slots", "1", "--block", "20K", f"1:{path}", "--", "sh", "-c",
                            f"echo >>{begun}; until [ -e {go} ]; do sleep 0.02; done; cat")
                until("it works", lambda: read(begun))
                if way == "replaced":
                    os.rename(self.path("new", b"new\n" * 50_000), path)
                else:
                    os.truncate(path, 0)
                open(go, "w", encoding="utf-8").close()
                out, err = job.communicate(timeout=LIMIT)
                os.unlink(go)
                self.assertEqual(out.replace(b"old\n", b""), b"")
                if way == "shortened" or job.returncode:
                    self.assertEqual(job.returncode, 1)
                    self.assertIn(f"{path}: the file was replaced by another one during the job; run the job again\n" if way == "replaced"
                                  else "truncated during the job", err.decode())
                else:
                    self.assertEqual(len(out), 200_000)

    def test_file_replaced_before_it_is_cut(self):
        """The job cuts standard input first. Meanwhile a file of another host is replaced."""
        path, begun = self.path("later", b"old\n" * 50_000), self.path("begun", b"")
        job = start("--slots", "1", "--block", "20K", "-", f"1:{path}", "--", "sh", "-c", f"echo >>{begun}; cat", stdin=subprocess.PIPE)
        job.stdin.write(b"first\n" * 50_000)
        job.stdin.flush()
        until("it works", lambda: read(begun))
        os.rename(self.path("new", b"new\n" * 50_000), path)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual((job.returncode, out.replace(b"first\n", b"")), (1, b""))
        self.assertIn(f"{path}: the file was replaced by another one during the job; run the job again\n", err.decode())

    def test_host_of_a_file_dies(self):
        """What others have read of the file is printed, the rest fails, and the errors name the reason."""
        path, go, begun = self.path("there", b"there\n" * 50_000), self.path("go"), self.path("begun", b"")
        job = start("--slots", "1", "--block", "20K", f"1:{path}", "--", "sh", "-c",
                    f"echo >>{begun}; until [ -e {go} ]; do sleep 0.02; done; cat")
        until("all work", lambda: read(begun).count(b"\n") >= 3)
        os.kill(self.node(job, 1), signal.SIGKILL)
        open(go, "w", encoding="utf-8").close()
        self.addCleanup(os.unlink, go)
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual(job.returncode, 1)
        self.assertIn(b"node 1, which has the file, is gone; run the job again when its host is back\n", err)
        self.assertNotIn(b"Connection reset", err)
        self.assertLess(out.count(b"there\n"), 50_000)

    def test_hostfile_killed(self):
        """The node on another host is killed, and then the whole job: no process is left on either host."""
        hosts = self.there(1, 2)
        go, begun = self.path("go"), self.path("begun", b"")
        self.addCleanup(os.unlink, go)
        job = start(*hosts["args"], "--block", "50K", "--slots", "1", Map.text, "--", "sh", "-c",
                    f"echo >>{begun}; until [ -e {go} ]; do sleep 0.02; done; cat", env=hosts["env"])
        until("all have joined, and work", lambda: read(begun))

        def there():  # a child that is about to become a command looks like the node for a moment
            found = [pid for pid in marked() if rank_of(pid) == 2]
            return found if len(found) == 1 else None
        os.kill(until("node 2 is one process", there)[0], signal.SIGKILL)
        open(go, "w", encoding="utf-8").close()
        out, err = job.communicate(timeout=LIMIT)
        self.assertEqual((job.returncode, out == Map.bytes), (0, True), err)
        self.assertIn(b"node 2 is gone", err)
        for sig in (signal.SIGKILL, signal.SIGTERM):
            job = start(*hosts["args"], "--block", "50K", "--slots", "1", Map.text, "--", "sh", "-c", "cat; sleep 0.1 | cat",
                        env=hosts["env"])
            os.read(job.stdout.fileno(), 1)
            job.send_signal(sig)
            job.communicate(timeout=LIMIT)
            until("all is gone", lambda: not marked())

    def test_wrong_hosts(self):
        unreachable = self.hostfile("unreachable-1")
        begin = time.monotonic()
        code, out, err = test_map.run(*unreachable["args"], Map.text, "--", "cat", env=unreachable["env"])
        self.assertEqual((code, out), (1, b""), err)
        self.assertIn("ssh failed", err)
        self.assertIn("not all nodes could be started", err)
        self.assertLess(time.monotonic() - begin, patience(25), "it waited for those that will not come")
        hosts = json.loads(read(unreachable["args"][1]))
        hosts["hosts"].reverse()
        path = self.path("turned.json", json.dumps(hosts).encode())
        for args, says in ((["--hostfile", path], "is not this host"),
                           (["--hostfile", self.path("none.json")], "none.json"),
                           (["--hostfile", path, "--nodes", "7"], "7 nodes were requested")):
            code, out, err = test_map.run(*args, Map.text, "--", "cat", env=unreachable["env"])
            self.assertIn(says, err)
            self.assertNotEqual(code, 0)
        for args, says in ((["--softverbs", "star:3"], "expected switch:N"),
                           (["--softverbs", "switch:2", "--nodes", "3"], "has 2 hosts, but there are 3 nodes")):
            job = start_here(*args, Map.text, "--", "cat")
            _, err = job.communicate(timeout=LIMIT)
            self.assertEqual(job.returncode, 2)
            self.assertIn(says, err.decode())


SHARED = ("cat_is_the_input unordered edges many_files long_lines separators streams a_failing_piece a_retry_goes_elsewhere "
          "signals_and_time stderr_of_commands what_a_command_leaves_running bad_commands output_file "
          "an_incomplete_output_replaces_nothing placeholders summary ctrl_c ctrl_z owner_killed more_slots_than_pieces what_output_replaces").split()


def chosen():
    """With TEST_THREADS only the tests that use other threads than those of test_map.py."""
    shared = [] if os.environ.get("TEST_THREADS") else SHARED
    names = [n for n in dir(Hosts) if n.startswith("test_") and (n in vars(Hosts) or n[5:] in shared)]
    return unittest.TestSuite(map(Hosts, names))


def load_tests(_loader, _tests, _pattern):
    return chosen()


if __name__ == "__main__":
    sys.stderr.write(f"seed {seed} (WEFT_TEST_SEED)\n")
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
