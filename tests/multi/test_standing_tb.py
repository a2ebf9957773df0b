#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A standing cluster over Thunderbolt alone. A node that dies cannot be replaced, which costs no number and is explained. test_ssh.py has
hosts that have another network, too.

Usage: test_standing_tb.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER: "--softverbs mesh:3:tb5-strict"
"""
import os
import signal
import sys
import unittest

sys.dont_write_bytecode = True
from test_standing import Standing, until  # noqa: E402


class Killed(Standing):
    def test_it_is_not_replaced(self):
        self.up()
        victim = self.node_beside()
        os.kill(victim["pid"], signal.SIGKILL)
        until("the launcher gives up", lambda: "no new node is started" in self.log())
        self.assertIn("the cluster refuses this node: transport tb connects only nodes that started the cluster together", self.log())
        self.assertIn("start the cluster again", self.log())
        until("it is shown as gone", lambda: [n["state"] for n in self.status()["nodes"] if n["node"] == victim["node"]] == ["gone"])
        got = self.status()
        self.assertEqual((got["numbers"], len(got["nodes"])), (3, 3))
        self.assertIn("weft_node_numbers_used 3\n", self.weft("status", "--metrics").stdout)
        self.assertEqual(self.exec("--", "echo", "x").stdout, "x\n" * 2)  # the others go on


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
