#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The installed units for systemd and launchd, as far as they can be tested without either as the host's first process: systemd-analyze accepts
the one, the other has only keys that launchd knows, both say the same, and what they say starts nodes that become a cluster, ends them
and brings a killed one back.

Usage: test_units.py PATH-OF-WEFT WEFT.SERVICE WEFT.PLIST, the units as they are installed
"""
import json
import os
import plistlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from processes import patience, until  # noqa: E402

WEFT, SERVICE, PLIST = (os.path.abspath(path) for path in sys.argv[1:4])
LIMIT = patience(60)
FILES = {"WEFT_HOSTFILE", "WEFT_SECRET_FILE"}
# launchd.plist(5)
KEYS = {"Label", "UserName", "ProgramArguments", "EnvironmentVariables", "RunAtLoad", "KeepAlive", "ExitTimeOut"}


def service():
    """{section: {key: [value, ...]}}"""
    found, section = {}, None
    with open(SERVICE, encoding="utf-8") as f:
        for line in f:
            line = line.strip()
            if line.startswith("["):
                section = found.setdefault(line[1:-1], {})
            elif line and not line.startswith("#"):
                key, value = line.split("=", 1)
                section.setdefault(key, []).append(value)
    return found


def plist():
    with open(PLIST, "rb") as f:
        return plistlib.load(f)


class Units(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-units-")
        self.addCleanup(folder.cleanup)
        self.tmp = folder.name
        self.said = service()["Service"]
        self.hosts = self.write("hosts.json", json.dumps({
            "weft": 1, "coord": f"unix:{self.tmp}/coord", "hosts": [{"ips": ["127.0.0.1"]}] * 2}))
        self.secret = self.write("secret", "sesame sesame sesame")

    def words(self):
        """What systemd would start: the command of this build instead of the installed one."""
        installed, *words = self.said["ExecStart"][0].split()
        self.assertEqual(os.path.basename(installed), "weft")
        return [WEFT, *words]

    def test_systemd_accepts_it(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("needs systemd-analyze")
        with open(SERVICE, encoding="utf-8") as f:
            text = f.read()
        installed = self.said["ExecStart"][0].split()[0]
        for change, wrong in (("", ""), ("Restart=", "Restat="), ("RestartSec=2", "RestartSec=soon"), ("[Service]", "[Servant]")):
            path = os.path.join(self.tmp, "weft.service")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text.replace(installed, WEFT).replace(change, wrong) if change else text.replace(installed, WEFT))
            p = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False, timeout=LIMIT)
            about = [line for line in p.stderr.splitlines() if "weft" in line]  # and not about other units of this host
            self.assertEqual(bool(about), bool(change), (change, p.stderr))
            self.assertTrue(change or p.returncode == 0, p.stderr)

    def test_launchd_knows_its_keys(self):
        got = plist()
        self.assertEqual(set(got), KEYS)
        self.assertTrue(got["RunAtLoad"])
        self.assertEqual(got["KeepAlive"], {"SuccessfulExit": False})
        self.assertIsInstance(got["ExitTimeOut"], int)

    def test_both_say_the_same(self):
        got = plist()
        self.assertEqual(got["ProgramArguments"], self.said["ExecStart"][0].split())
        self.assertEqual([got["UserName"]], self.said["User"])
        self.assertEqual(self.said["Restart"], ["on-failure"])  # as SuccessfulExit, false
        theirs = [f"{name}={value}" for name, value in got["EnvironmentVariables"].items()]
        self.assertEqual(theirs, [e for e in self.said["Environment"] if not e.startswith("XDG_RUNTIME_DIR=")])
        self.assertEqual(self.said["RuntimeDirectoryMode"], ["0700"])
        self.assertIn(f"XDG_RUNTIME_DIR=/run/{self.said['RuntimeDirectory'][0]}", self.said["Environment"])

    # --- what they say, run by hand ---

    def environment(self, host):
        """The environment that systemd would give on this host: files and folders are of this test."""
        env = {"PATH": os.environ["PATH"], "HOME": self.tmp, "USER": "weft"}
        env.update((name, value) for name, value in os.environ.items() if name.endswith("SAN_OPTIONS"))  # of the sanitizers, in such a build
        env.update(e.split("=", 1) for e in self.said["Environment"])
        self.assertEqual({name for name in env if name.startswith("WEFT_")}, FILES | {"WEFT_RANK", "WEFT_JOIN_TIMEOUT"})
        env.update(WEFT_HOSTFILE=self.hosts, WEFT_SECRET_FILE=self.secret, WEFT_RANK=str(host), XDG_RUNTIME_DIR=os.path.join(self.tmp, f"run{host}"))
        os.makedirs(env["XDG_RUNTIME_DIR"], mode=0o700, exist_ok=True)
        return env

    def write(self, name, text):
        path = os.path.join(self.tmp, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def unit(self, host):
        p = subprocess.Popen(self.words(), env=self.environment(host), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def weft(self, host, *args):
        return subprocess.run([WEFT, *args], env=self.environment(host), capture_output=True, text=True, timeout=LIMIT, check=False,
                              stdin=subprocess.DEVNULL)

    def shown(self, host):
        p = self.weft(host, "status", "--json")
        return [(n["node"], n["state"]) for n in json.loads(p.stdout)["nodes"]] if p.returncode == 0 else []

    def test_nodes_start_and_come_back(self):
        units = [self.unit(host) for host in (0, 1)]
        until("both are up", lambda: self.shown(0) == self.shown(1) == [(0, "up"), (1, "up")], LIMIT)
        self.assertEqual(self.weft(1, "exec", "--", "echo", "x").stdout, "x\nx\n")
        units[1].kill()
        self.assertNotEqual(units[1].wait(LIMIT), 0)  # so it is started again
        until("the other one sees it", lambda: (1, "gone") in self.shown(0), LIMIT)
        units[1] = self.again(1)
        until("it is back", lambda: (2, "up") in self.shown(0) and (2, "up") in self.shown(1), LIMIT)
        units[1].send_signal(signal.SIGTERM)  # `systemctl stop` and `launchctl bootout`
        _, err = units[1].communicate(timeout=LIMIT)
        self.assertEqual(units[1].returncode, 0, err)  # so it is not started again
        self.assertEqual(self.weft(0, "down").returncode, 0)
        self.assertEqual(units[0].wait(LIMIT), 0)

    def again(self, host):
        """As often as systemd would try, while processes of the killed node hold its lock."""
        for _ in range(int(LIMIT)):
            p = self.unit(host)
            try:
                p.wait(float(self.said["RestartSec"][0]))
            except subprocess.TimeoutExpired:
                return p
        self.fail(p.stderr.read())
        return None


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
