#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft cast over the only cable between two hosts, which is pulled and plugged again and again: the nodes' words to each other, which have no
weft_op, are lost then. The cast goes on each time, and its files are right.

Usage: test_cast_pulled.py PATH-OF-WEFT CLUSTER, CLUSTER: "--softverbs mesh:2:PROFILE"
Environment: CAST_SEED
"""
import os
import random
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
from cast_test import LIMIT, WEFT, Cast, until  # noqa: E402

SEED = int(os.environ.get("CAST_SEED", random.randrange(1 << 32)))


class Pulled(Cast):
    def test_pulled(self):
        rng = random.Random(SEED)
        print(f"CAST_SEED={SEED}", flush=True)
        for i in range(300):
            self.file(f"src/small/{i}", rng.randbytes(rng.randrange(8192)))
        self.file("src/big", rng.randbytes(15_000_000))
        p = subprocess.Popen([WEFT, "cast", "--json", "--bwlimit", "6M", self.src, "1:" + self.dest], env=self.env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.kill)
        pulls = 0
        until("it writes", lambda: os.path.exists(self.at(1, "src")) or p.poll() is not None)
        while p.poll() is None and pulls < 8:
            time.sleep(rng.random() * 0.3)
            pulls += self.pull_cable(rng)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 0, out + err)
        self.assertGreater(pulls, 1)
        self.same(1)
        self.no_parts()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
