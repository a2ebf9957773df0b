# SPDX-License-Identifier: MIT
"""What the tests of programs share: a fabric of their own, pairs of programs on it, and their whole output in a failure."""
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import unittest

COMMAND = "build/softverbs/cli/softverbs"  # set by the test from its first argument
LIMIT = 90 * max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))  # seconds until a program that should have ended is called a failure


def clean_env(**more):
    """This environment without what tells softverbs where it is, and with `more`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTVERBS_")}
    env.update(more)
    return env


def free_port():
    """A port on which nobody listens, below the range that the system uses for outgoing connections."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket(socket.AF_INET6) as s:
            try:
                s.bind(("::", port))
                return port
            except OSError:
                pass


def listening(port):
    """Whether somebody listens on the port; seen without connecting, as these servers serve one client only."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as f:
                for line in f.readlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                        return True
        except OSError:
            pass
    return False


class Program:
    """A program on a host of the fabric. Its output goes to files, so that no full pipe can stop it."""

    def __init__(self, env, argv):
        self.argv = argv
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=env)

    def text(self, stream):
        stream.seek(0)
        return stream.read().decode("utf-8", "replace")

    def told(self):
        """The output, for an error message."""
        code = self.process.poll()
        end = "still runs" if code is None else f"ended with {code}"
        return f"--- {' '.join(self.argv)}: {end}\n{self.text(self.out)}\n--- stderr\n{self.text(self.err)}\n"

    def stop(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait()

    def close(self):
        self.stop()
        self.out.close()
        self.err.close()


class Base(unittest.TestCase):
    """Each test class has a fabric of its own in a directory of its own. After each test, the programs that it has started are ended."""
    PROFILE = None

    @classmethod
    def setUpClass(cls):
        # in memory, where the fabrics of people live too
        shm = "/dev/shm"
        cls.folder = tempfile.TemporaryDirectory(prefix=os.environ.get("TEST_RUN_MARK", "softverbs") + "-",
                                                 dir=shm if os.access(shm, os.W_OK) else None)
        cls.env = clean_env(SOFTVERBS_DIR=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.started = []

    def tearDown(self):
        for program in self.started:
            program.close()

    def start(self, host, *argv, **more):
        profile = ["--profile", self.PROFILE] if self.PROFILE else []
        program = Program({**self.env, **more}, [COMMAND, "run", "--fabric", "test", "--host", str(host), *profile, "--",
                                                 *map(str, argv)])
        self.started.append(program)
        return program

    def softverbs(self, *argv, code=0):
        """The command itself; its output."""
        got = subprocess.run([COMMAND, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.env,
                             timeout=LIMIT)
        self.assertEqual(got.returncode, code, f"softverbs {' '.join(argv)}\n{got.stdout}\n{got.stderr}")
        return got.stdout

    def json(self, *argv):
        return json.loads(self.softverbs(*argv, "--json"))

    def told(self):
        return "\n" + "".join(p.told() for p in self.started)

    def wait(self, *programs, limit=LIMIT):
        """Waits until the programs have ended, and checks that all have succeeded."""
        end = time.monotonic() + limit
        waiting = list(programs)
        while waiting:
            for p in list(waiting):
                code = p.process.poll()
                if code is not None:
                    waiting.remove(p)
                    if code:
                        time.sleep(0.2)  # the other side has something to say about it too
                        self.fail("a program failed" + self.told())
            if time.monotonic() > end:
                self.fail(f"a program did not end within {limit} s" + self.told())
            if waiting:
                time.sleep(0.002)

    def pair(self, server, client, hosts=(0, 1), port_option="-p", **env):
        """Runs a server and, when it listens, its client. Returns both outputs. The options may be one list for both, or one for each."""
        port = free_port()
        options = (port_option, port_option) if isinstance(port_option, str) else port_option
        a = self.start(hosts[0], *server, options[0], port, **env)
        end = time.monotonic() + LIMIT
        while not listening(port):
            if a.process.poll() is not None or time.monotonic() > end:
                self.fail("the server does not listen" + self.told())
            time.sleep(0.002)
        b = self.start(hosts[1], *client, options[1], port, "localhost", **env)
        self.wait(a, b)
        return a.text(a.out), b.text(b.out)
