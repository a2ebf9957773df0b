# SPDX-License-Identifier: MIT
"""What the tests of the command share: fabrics of their own, and programs on them that execute commands of the test."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND, CLIENT = (os.path.abspath(a) for a in sys.argv[1:3])
LIMIT = 60 * max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))  # seconds until something that should have ended is called a failure


class Base(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTVERBS_")}
        self.env["SOFTVERBS_DIR"] = os.path.join(self.dir, "fabrics")
        self.clients = []

    def tearDown(self):
        for c in self.clients:
            c.end()
        shutil.rmtree(self.dir)

    def call(self, *args, **env):
        return subprocess.run([COMMAND, *args], env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)

    def good(self, *args, **env):
        p = self.call(*args, **env)
        self.assertEqual((p.returncode, p.stderr), (0, ""), args)
        return p.stdout

    def bad(self, status, pattern, *args, **env):
        """The command must fail with this status, and print one message, which matches the pattern."""
        p = self.call(*args, **env)
        self.assertEqual(p.returncode, status, p.stderr)
        self.assertRegex(p.stderr, pattern)
        self.assertTrue(p.stderr.startswith("softverbs"), p.stderr)
        self.assertEqual(p.stdout, "")

    def fabrics(self):
        return {f["fabric"]: f for f in json.loads(self.good("ls", "--json"))}

    def device(self, host, fabric="default", which=0):
        return [d for d in self.fabrics()[fabric]["devices"] if d["host"] == str(host)][which]

    def struck(self):
        """Waits until the only rule has been applied to a message or call."""
        end = time.monotonic() + LIMIT
        while not json.loads(self.good("fault", "list", "--json"))[0]["struck"]:
            self.assertLess(time.monotonic(), end)

    def client(self, host, fabric="default"):
        c = Client(self.env, fabric, host)
        self.clients.append(c)
        return c

    def connected(self, kind="rc", hosts=("0", "1"), fabric="default"):
        """Starts two programs, and connects a queue pair of each to the other's."""
        pair = [self.client(h, fabric) for h in hosts]
        for c, h in zip(pair, hosts):
            c.open(self.device(h, fabric)["device"])
            c.qp(kind)
        for c, other in zip(pair, reversed(pair)):
            self.assertEqual(c.tell(f"connect {other.number} {other.gid}"), "ok")
        return pair


class Client:
    """A program on a host, which executes the commands of the test (command_client.c)."""

    def __init__(self, env, fabric, host):
        self.process = subprocess.Popen([COMMAND, "run", "--fabric", fabric, "--host", host, "--", CLIENT], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        return self.process.stdout.readline().rstrip("\n")

    def must(self, line):
        answer = self.tell(line)
        assert answer.startswith("ok"), f"{line}: {answer}"
        return answer[3:]

    def open(self, device):
        self.must(f"open {device}")

    def qp(self, kind):
        for line in ("pd", "mr", "cq"):
            self.must(line)
        self.number = self.must(f"qp {kind}")
        self.gid = self.must("address")

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
