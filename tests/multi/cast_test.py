# SPDX-License-Identifier: MIT
"""What tests of `weft cast` share: a standing cluster on this host, folders for its nodes, and what is compared. The program that imports
it is called with PATH-OF-WEFT CLUSTER [TEST...], CLUSTER: "-n 4", or "--softverbs switch:4", or, under over_network.py, "network": a node in each of
its four namespaces, whose commands are given in the first one."""
import atexit
import functools
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import processes
from processes import alive, clean_env, patience

REAL = os.path.abspath(sys.argv[1])
WEFT = REAL  # the command as it is to be called
CLUSTER = sys.argv[2].split()
HOSTS = os.environ.get("TEST_NAMESPACES", "").split(":") if CLUSTER == ["network"] else []
if HOSTS:
    WEFT = os.path.join(tempfile.mkdtemp(prefix="weft-cast-"), "weft")
    atexit.register(shutil.rmtree, os.path.dirname(WEFT))
    with open(WEFT, "w", encoding="utf-8") as script:
        script.write(f"#!/bin/sh\nexec nsenter --net={HOSTS[0]} {REAL} \"$@\"\n")
    os.chmod(WEFT, 0o755)
LIMIT = patience(60)
MARK = f"weft-cast-test-{os.getpid()}"
until = functools.partial(processes.until, limit=LIMIT)


def tree(root):
    """All that should be the same in two trees: kinds, modes, times, contents, what is linked to what."""
    root = os.fsencode(root)
    found, inodes = {}, {}
    for folder, folders, files in os.walk(root):
        for name in [b"."] * (folder == root) + folders + files:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            below = os.path.relpath(path, root)
            what = [stat.S_IFMT(st.st_mode), st.st_mtime_ns]
            if stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(path))
            else:
                what.append(stat.S_IMODE(st.st_mode))
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    what += [st.st_size, hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else
                             hashlib.sha256(f.read()).hexdigest()]
                if st.st_nlink > 1:
                    inodes.setdefault(st.st_ino, []).append(below)
            found[below] = what
    return found, sorted(sorted(names) for names in inodes.values())


def environ(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return f.read().split(b"\0")
    except OSError:
        return []


class Cast(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-cast-")
        cls.addClassCleanup(cls.tmp.cleanup)
        os.chmod(cls.tmp.name, 0o755)
        cls.env = clean_env(XDG_RUNTIME_DIR=cls.tmp.name, WEFT_LIVENESS="30s", WEFT_POOL="64M", HOME=cls.tmp.name, MARK=MARK)
        cls.env.update({name: os.environ[name] for name in ("WEFT_TRANSPORT", "WEFT_OFI_PROVIDER") if HOSTS}, **({"WEFT_CLUSTER": "c0"} if HOSTS else {}))
        cls.start()

    @classmethod
    def start(cls):
        """Start the standing cluster."""
        if not HOSTS:
            subprocess.run([WEFT, "up", *CLUSTER], env=cls.env, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
            return
        for rank, host in enumerate(HOSTS):
            env = {**cls.env, "WEFT_RANK": str(rank), "WEFT_SIZE": str(len(HOSTS)), "WEFT_COORD": os.environ["TEST_COORD"] + ":20000"}
            p = subprocess.Popen(["nsenter", f"--net={host}", REAL, "up", "--here", "--cluster", f"c{rank}"], env=env, stdin=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            cls.addClassCleanup(lambda p=p: p.poll() is None and p.kill())
            cls.addClassCleanup(p.wait, LIMIT)

        def up():
            p = subprocess.run([WEFT, "status", "--json"], env=cls.env, check=False, timeout=LIMIT, capture_output=True)
            return p.returncode == 0 and all(n["state"] == "up" for n in json.loads(p.stdout)["nodes"])
        until("the nodes are up", up)

    @classmethod
    def tearDownClass(cls):
        subprocess.run([WEFT, "down"], env=cls.env, check=True, timeout=LIMIT)

    def setUp(self):
        self.here = tempfile.mkdtemp(prefix="case-", dir=self.tmp.name)
        os.chmod(self.here, 0o755)
        self.src = os.path.join(self.here, "src")
        self.dest = os.path.join(self.here, "d{node}")

    def weft(self, *args, code=0, **more):
        more.setdefault("env", self.env)
        p = subprocess.run([WEFT, *args], capture_output=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL, **more)
        p.stdout, p.stderr = os.fsdecode(p.stdout), os.fsdecode(p.stderr)
        if code is not None and p.returncode != code:
            raise AssertionError(f"weft {args}: {p.returncode}\n{p.stdout[-3000:]}\n{p.stderr[-3000:]}")
        return p

    def cast(self, *args, **more):
        return self.weft("cast", *args, **more)

    def summary(self, *args, **more):
        return json.loads(self.cast("--json", *args, **more).stdout)

    def at(self, node, *names):
        return os.path.join(self.here, f"d{node}", *names)

    def file(self, name, content, mode=0o644):
        path = os.path.join(self.here, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(content)
        os.chmod(path, mode)
        return path

    def same(self, node, name="src", source=None):
        self.assertEqual(tree(self.at(node, name)), tree(source or self.src), node)

    def no_parts(self):
        for folder, _, files in os.walk(self.here):
            self.assertEqual([f for f in files if f.startswith(".weft-cast-")], [], folder)

    def pull_cable(self, rng):
        """Over emulated devices: a cable is pulled, and plugged again within a second. False: no node of a cast runs."""
        softverbs = os.path.join(os.path.dirname(REAL), "..", "..", "softverbs", "cli", "softverbs")
        found = [e for pid in self.nodes_of_cast().values() for e in environ(pid) if e.startswith(b"SOFTVERBS_DIR=")]
        if not found:
            return False
        env = {**os.environ, "SOFTVERBS_DIR": os.fsdecode(found[0][14:])}
        fabric = json.loads(subprocess.run([softverbs, "ls", "--fabric", "weft", "--json"], env=env, check=True, capture_output=True).stdout)[0]
        one = rng.choice([d for d in fabric["devices"] if d["port"] == "active"])
        device = f"{one['host']}:{one['device']}"
        subprocess.run([softverbs, "fault", "pull", "--fabric", "weft", device], env=env, check=True, capture_output=True)
        time.sleep(rng.random())
        subprocess.run([softverbs, "fault", "plug", "--fabric", "weft", device], env=env, check=True, capture_output=True)
        return True

    def nodes_of_cast(self):
        """Process numbers of the running cast's nodes, by rank."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{pid}/environ", "rb") as f:
                    env = f.read().split(b"\0")
            except OSError:
                continue
            if words[1:3] in ([b"cast", b"--as-node"], [b"cp", b"--as-node"]) and MARK.encode() in b"\0".join(env) and alive(int(pid)):
                rank = [int(e[10:]) for e in env if e.startswith(b"WEFT_RANK=")]
                if rank:
                    found[rank[0]] = int(pid)
        return found
