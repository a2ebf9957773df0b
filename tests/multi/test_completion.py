#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What bash completes for weft (data/weft.bash): commands, options, the hosts of a standing cluster, programs and files.

Usage: test_completion.py PATH-OF-WEFT COMPLETION-FILE
"""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from processes import clean_env, patience  # noqa: E402

WEFT, FILE = map(os.path.abspath, sys.argv[1:3])
LIMIT = patience(60)
# As bash calls the function: the words with = and : apart.
CALL = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weft; printf "%s\\n" "${COMPREPLY[@]}"'


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-complete-")
        cls.addClassCleanup(cls.tmp.cleanup)
        cls.env = clean_env(XDG_RUNTIME_DIR=cls.tmp.name, WEFT_POOL="64M", HOME=cls.tmp.name)

    def complete(self, *words):
        p = subprocess.run(["bash", "-uc", CALL, "bash", FILE, WEFT, *words], env=self.env, capture_output=True, text=True, timeout=LIMIT,
                           check=True)
        self.assertEqual(p.stderr, "")
        return p.stdout.split()

    def test_commands(self):
        got = self.complete("")
        for word in ("map", "run", "up", "exec", "cast", "config", "help", "--version"):
            self.assertIn(word, got)
        self.assertNotIn("weft", got)
        self.assertEqual(self.complete("ex"), ["exec"])
        self.assertEqual(self.complete("help", "st"), ["status"])

    def test_options(self):
        self.assertEqual(self.complete("exec", "--ta"), ["--tag"])
        self.assertEqual(self.complete("map", "--hostf"), ["--hostfile"])
        for command in self.complete(""):
            if command.isalpha() and command != "help":
                self.assertIn("--help", self.complete(command, "--"), command)

    def test_programs_and_files(self):
        self.assertIn("uptime", self.complete("exec", "--on", "a", "--", "uptim"))
        self.assertEqual(self.complete("exec", "--", "ls", "--al"), [])  # bash completes names of files
        self.assertEqual(self.complete("map", "fil"), [])
        p = subprocess.run(["bash", "-c", 'source "$1"; complete -p weft', "bash", FILE], capture_output=True, text=True, check=True, timeout=LIMIT)
        self.assertIn("-o default", p.stdout)

    def test_hosts(self):
        self.assertEqual(self.complete("exec", "--on", ""), ["all"])
        subprocess.run([WEFT, "up", "-n", "2", "--cluster", "c"], env=self.env, check=True, timeout=LIMIT, stderr=subprocess.DEVNULL)
        try:
            host = os.uname().nodename
            self.assertEqual(sorted(self.complete("exec", "--cluster", "c", "--on", "")), sorted([host, "all"]))
            self.assertEqual(self.complete("cast", "--cluster", "=", "c", "--to", "=", host[:3]), [host])
            self.assertEqual(self.complete("publish", "--cluster", "c", "--to", host[:3]), [host + ":"])
            self.assertEqual(self.complete("proxy", "--cluster", "c", "--via", host[:3]), [host])
            self.assertEqual(self.complete("exec", "--cluster", "c", "--on", "x," + host[:3]), ["x," + host])
        finally:
            subprocess.run([WEFT, "down", "--cluster", "c"], env=self.env, check=True, timeout=LIMIT)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
