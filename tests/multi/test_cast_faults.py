#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft cast with a fault at a random moment of each round: a node or the command is killed or interrupted, a node is stopped for a while, a
disk is full, and over emulated devices or a network a cable is pulled and plugged. Then the same command again. After each of the two, no receiver has a
wrong file under its name (sha256sum tells, and not weft); after the second one all receivers are the same as the source. Then a part of what
the receivers have is deleted, and the next round begins. What was sent a second time is counted and printed. In the end, rsync --checksum finds no difference.

Usage: test_cast_faults.py PATH-OF-WEFT CLUSTER, CLUSTER: "-n 4", "--softverbs switch:4" or "network" (cast_test.py)
Environment: CAST_ROUNDS (6); CAST_FILES, small files (300); CAST_BIG, number and bytes of large files ("2x6000000"); CAST_DIR, where the trees
are; CAST_SEED; CAST_SECONDS: after so long no further round begins. The issue's size: CAST_ROUNDS=100 CAST_FILES=10000 CAST_BIG=4x2500000000, which takes 45 GB of disk.
"""
import collections
import concurrent.futures
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
from cast_test import CLUSTER, HOSTS, LIMIT, WEFT, Cast, tree, until  # noqa: E402

ROUNDS = int(os.environ.get("CAST_ROUNDS", "6"))
FILES = int(os.environ.get("CAST_FILES", "300"))
BIG, BIG_BYTES = (int(n) for n in os.environ.get("CAST_BIG", "2x6000000").split("x"))
SECONDS = float(os.environ.get("CAST_SECONDS", "inf"))
SEED = int(os.environ.get("CAST_SEED", random.randrange(1 << 32)))
LONG = LIMIT + (FILES * 4096 + BIG * BIG_BYTES) / 20e6  # seconds; for what all of it takes on a slow machine
PIECE = 1 << 20
LEAST = 0.5  # seconds that a copy with a fault takes at the least
RECEIVERS = (1, 2, 3)
FULL = 2  # the receiver whose disk becomes full


def sums(folder, names):
    """What sha256sum says of these files. As many processes run at once as there are processors."""
    large = [name for name in names if os.path.basename(name).startswith("big")]
    few = set(large)
    small = [name for name in names if name not in few]
    parts = [[name] for name in large] + [small[at:at + 500] for at in range(0, len(small), 500)]

    def part(some):
        return subprocess.run(["sha256sum", "--zero", "--", *some], cwd=folder, check=True, capture_output=True).stdout

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return {line[66:].decode(): line[:64] for out in pool.map(part, parts) for line in out.split(b"\0") if line}


class Faults(Cast):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trees = tempfile.TemporaryDirectory(prefix="weft-cast-faults-", dir=os.environ.get("CAST_DIR"))
        cls.addClassCleanup(cls.trees.cleanup)

    def setUp(self):
        self.here = self.trees.name
        self.src, self.dest = os.path.join(self.here, "src"), os.path.join(self.here, "d{node}")
        self.rng = random.Random(SEED)
        self.known = {}  # files that were right: the path, and what stat() said
        self.count = collections.Counter()
        self.wrong = None  # what went wrong in the thread of a fault
        print(f"CAST_SEED={SEED} CAST_ROUNDS={ROUNDS} CAST_FILES={FILES} CAST_BIG={BIG}x{BIG_BYTES}", flush=True)

    def fill(self):
        for i in range(FILES):
            self.file(f"src/{i % 97}/{i}", self.rng.randbytes(self.rng.randrange(8192)))
        for i in range(BIG):
            with open(os.path.join(self.src, f"big{i}"), "wb") as f:
                left = BIG_BYTES
                while left:
                    left -= f.write(self.rng.randbytes(min(left, PIECE)))
        os.symlink("big0", os.path.join(self.src, "link"))
        self.files = [os.path.relpath(os.path.join(at, name), self.src) for at, _, names in os.walk(self.src) for name in names]
        self.files = [name for name in self.files if not os.path.islink(os.path.join(self.src, name))]
        self.sizes = {name: os.path.getsize(os.path.join(self.src, name)) for name in self.files}
        self.right = sums(self.src, self.files)

    def mount_small(self):
        """A disk of its own for one receiver, so that it can be full. Without the right to mount, none is."""
        room = sum(self.sizes.values()) * 5 // 4 + FILES * 8192 + (64 << 20)
        os.mkdir(self.at(FULL))
        if os.getuid() != 0 or not shutil.which("mount"):
            return False
        image = os.path.join(self.here, "image")
        with open(image, "wb") as f:
            f.truncate(room)
        made = shutil.which("mkfs.ext4") and subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], capture_output=True, check=False).returncode == 0
        if not made or subprocess.run(["mount", "-o", "loop", image, self.at(FULL)], capture_output=True, check=False).returncode:
            os.unlink(image)
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "weft", self.at(FULL)], capture_output=True, check=False).returncode:
                return False
        self.addCleanup(subprocess.run, ["umount", self.at(FULL)], check=True)
        return True

    # --- what is there ---

    def look(self, all_there):
        """Compare what the receivers have with the source. What was right before and has not been written since is not read again."""
        for node in RECEIVERS:
            new, stats = [], {}
            for name in self.files:
                path = self.at(node, "src", name)
                try:
                    st = os.lstat(path)
                except OSError:
                    self.assertFalse(all_there, path)
                    continue
                stats[name] = (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
                if self.known.get(path) != stats[name]:
                    new.append(name)
            folder = self.at(node, "src")
            got = sums(folder, new) if new else {}
            self.assertEqual({name: got[name] for name in new}, {name: self.right[name] for name in new}, f"node {node}: wrong under its name")
            self.count["files compared"] += len(new)
            self.known.update((self.at(node, "src", name), stats[name]) for name in new)
            if all_there:
                self.assertEqual(os.readlink(self.at(node, "src", "link")), "big0")
                self.assertEqual([f for _, _, names in os.walk(folder) for f in names if f.startswith(".weft-cast-")], [])

    def missing(self):
        """Bytes that the source must send: files that any receiver lacks."""
        return sum(size for name, size in self.sizes.items() if not all(os.path.exists(self.at(node, "src", name)) for node in RECEIVERS))

    def delete_some(self):
        for node in RECEIVERS:
            some = self.rng.sample([name for name in self.files if not name.startswith("big")], FILES // 10)
            some += [f"big{self.rng.randrange(BIG)}"] * (self.rng.random() < 0.7)
            for name in some:
                os.unlink(self.at(node, "src", name))

    # --- faults ---

    def kill(self, p):
        rank = self.rng.choice([0, 1, 2, 3])
        pid = self.nodes_of_cast().get(rank)
        if pid:
            os.kill(pid, signal.SIGKILL)

    def kill_command(self, p):
        p.kill()

    def interrupt(self, p):
        p.send_signal(signal.SIGINT)

    def stop(self, p):
        pid = self.nodes_of_cast().get(self.rng.choice([0, 1, 2, 3]))
        if pid:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.rng.random())
            os.kill(pid, signal.SIGCONT)

    def fill_disk(self, p):
        st = os.statvfs(self.at(FULL))
        left = int(self.rng.random() * BIG_BYTES / 2)
        subprocess.run(["fallocate", "-l", str(max(4096, st.f_bavail * st.f_frsize - left)), self.at(FULL, "filler")], check=False, capture_output=True)

    def pull(self, p):
        if HOSTS:
            port = f"net0-{self.rng.randrange(1, len(HOSTS))}"
            subprocess.run(["ip", "link", "set", port, "down"], check=True)
            time.sleep(self.rng.random())
            subprocess.run(["ip", "link", "set", port, "up"], check=True)
            return
        self.pull_cable(self.rng)

    def one_fault(self, fault, needed, seconds):
        """Run the command so that it takes about so many seconds without a fault. Returns its summary; None if it printed none."""
        rate = str(int(needed / seconds) + 1)
        p = subprocess.Popen([WEFT, "cast", "--json", "--bwlimit", rate, self.src, "all:" + self.dest], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        timer = threading.Timer(0.05 + self.rng.random() * seconds, self.guarded, [fault, p])
        timer.start()
        out, err = p.communicate(timeout=LONG)
        self.assertNotIn(p.returncode, (-signal.SIGSEGV, -signal.SIGABRT, 128 + signal.SIGSEGV, 128 + signal.SIGABRT), err)
        timer.join()
        until("all nodes have ended", lambda: not self.nodes_of_cast())
        if self.wrong:
            raise self.wrong
        self.count[f"runs that ended with {p.returncode}"] += 1
        try:
            return json.loads(out)
        except ValueError:
            return None

    def guarded(self, fault, p):
        try:
            fault(p)
        except (ProcessLookupError, FileNotFoundError):  # it has just ended
            pass
        except Exception as e:  # the main thread raises it; pylint: disable=broad-exception-caught
            self.wrong = e

    def again(self):
        """The same command; if the fault has ended the standing cluster's nodes, after it was started anew."""
        for attempt in range(3):
            p = subprocess.run([WEFT, "cast", "--json", self.src, "all:" + self.dest], env=self.env, capture_output=True, timeout=LONG, check=False)
            if p.returncode == 0:
                return json.loads(p.stdout)
            status = subprocess.run([WEFT, "status", "--json"], env=self.env, capture_output=True, timeout=LIMIT, check=False)
            nodes = json.loads(status.stdout)["nodes"] if status.returncode == 0 else []
            self.assertFalse(len(nodes) == 4 and all(n["state"] == "up" for n in nodes), p.stderr)
            self.count["standing clusters that the fault has ended"] += 1
            subprocess.run([WEFT, "down"], env=self.env, timeout=LIMIT, check=False, capture_output=True)
            self.start()
        raise AssertionError(p.stderr)

    def test_faults(self):
        self.fill()
        faults = [self.kill, self.kill_command, self.interrupt, self.stop]
        faults += [self.fill_disk] * self.mount_small() + [self.pull] * (CLUSTER[0] != "-n")
        begin = time.monotonic()
        self.again()
        first = time.monotonic() - begin
        self.look(True)
        self.assertEqual(tree(self.at(1, "src")), tree(self.src))
        sent = twice = 0
        for turn in range(ROUNDS):
            if time.monotonic() - begin > SECONDS:
                break
            self.delete_some()
            needed = self.missing()
            fault = faults[turn % len(faults)]
            got = self.one_fault(fault, needed, max(LEAST, first * needed / sum(self.sizes.values())))
            self.look(False)
            filler = self.at(FULL, "filler")
            if os.path.exists(filler):
                os.unlink(filler)
            rest = self.missing()
            last = self.again()
            self.look(True)
            discarded = last["discarded_bytes"] + (got["discarded_bytes"] if got else 0)
            both = got["sent_bytes"] + last["sent_bytes"] if got else 0
            sent += both
            twice += max(0, both - needed) if got else 0
            self.count["rounds"] += 1
            self.count["rounds without a summary of the first command"] += got is None
            print(f"round {turn}: {fault.__name__}: {needed} bytes were missing, then {rest}; sent {got['sent_bytes'] if got else 'unknown'} and "
                  f"{last['sent_bytes']}; {discarded} bytes arrived where they were not needed", flush=True)
        for node in RECEIVERS:
            p = subprocess.run(["rsync", "--dry-run", "--checksum", "--recursive", "--links", "--perms", "--times", "--hard-links", "--delete", "--itemize-changes",
                                self.src + "/", self.at(node, "src") + "/"], check=True, capture_output=True, text=True)
            self.assertEqual(p.stdout, "", f"node {node}")
        self.assertEqual(tree(self.at(3, "src")), tree(self.src))
        for what, number in sorted(self.count.items()):
            print(f"{what}: {number}")
        print(f"bytes sent in rounds with both summaries: {sent}, of these a second time: {twice} ({100 * twice / max(sent, 1):.1f} %); "
              f"the first copy of all took {first:.1f} s")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
