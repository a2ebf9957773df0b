#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A full file system: calls fail with an errno, no program gets SIGBUS, and the next program finds the fabric intact.

Usage: test_full.py PATH-OF-SOFTVERBS PATH-OF-FULL
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND, FULL = (os.path.abspath(a) for a in sys.argv[1:3])
OWN_MOUNTS = ("unshare", "-rm")
KINDS = {"qp", "srq", "mr", "pd", "cq"}
NO_MEMORY = (12, 28)  # ENOMEM, ENOSPC
SCRIPT = """
mount -t tmpfs -o size="$1" tmpfs "$SOFTVERBS_DIR" || exit 77
"$2" up switch 2 || exit 3
"$2" run -- "$3" || exit
"$2" run -- "$3" || exit
"$2" ls --json >/dev/null && "$2" down
"""


class Full(unittest.TestCase):
    def fill(self, size):
        with tempfile.TemporaryDirectory() as directory:
            env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTVERBS_")}
            # The program ends without destroying anything, on purpose.
            env["ASAN_OPTIONS"] = ":".join(filter(None, [env.get("ASAN_OPTIONS"), "detect_leaks=0"]))
            p = subprocess.run([*OWN_MOUNTS, "sh", "-c", SCRIPT, "sh", size, COMMAND, FULL], env={**env, "SOFTVERBS_DIR": directory},
                               capture_output=True, text=True, timeout=120, check=False)
            if p.returncode == 77 or p.stderr.startswith("unshare:"):
                self.skipTest("nothing can be mounted here")
            return p

    def test_too_little_for_a_fabric(self):
        p = self.fill("64k")
        self.assertEqual(p.returncode, 3, p.stderr)
        self.assertRegex(p.stderr, "no room for fabric .*No space left.*SOFTVERBS_DIR")

    def test_each_kind_ends_with_an_errno(self):
        kinds_ended = set()
        for size in ("704k", "712k", "724k", "1m", "3m"):
            p = self.fill(size)
            self.assertEqual(p.returncode, 0, (size, p.stdout, p.stderr))
            said = re.findall(r"^(\w+) (?:(\d+) )?(\d+)$", p.stdout, re.M)
            self.assertTrue(said or "no room" in p.stderr, (size, p.stdout, p.stderr))
            if said:  # each of the two programs, once, though it was refused often
                self.assertEqual(len(re.findall("its file system is full, .*SOFTVERBS_DIR", p.stderr)), 2, (size, p.stderr))
            for kind, count, error in said:
                if kind == "context" and error == "0":  # of those it wants only some
                    continue
                self.assertIn(int(error), NO_MEMORY, (size, kind, count))
                kinds_ended.add(kind)
        self.assertLessEqual(KINDS, kinds_ended)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
