#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Nodes whose libfabrics have different providers: each pair uses one that both have, or says that there is none.

Usage: over_network.py tcp,4,3 test_providers.py MULTI_PEER POOR_LIBRARY WEFT MULTI_REJOIN MULTI_POLLED    (poor_library.c)

The providers of each node are named in WEFT_OFI_PROVIDER, as if its libfabric had no others.
"""
import json
import os
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
from processes import clean_env, patience  # noqa: E402

PEER, POOR, WEFT, REJOIN, POLLED = (os.path.abspath(path) for path in sys.argv[1:6])
LIMIT = patience(60)
HOSTS = os.environ["TEST_NAMESPACES"].split(":")
COORD = os.environ["TEST_COORD"]
NET, RXM = "net", "tcp;ofi_rxm"  # of libfabric 1.17
BOTH = f"{NET},{RXM}"


class Providers(unittest.TestCase):
    def nodes(self, lists, end="leave", seconds=60, program=None, **more):
        """(stdout, stderr, status) of each node; lists[i]: the providers of node i."""
        env = clean_env(WEFT_SIZE=str(len(lists)), WEFT_COORD=f"{COORD}:7654", WEFT_TRANSPORT="ofi", WEFT_POOL="16M", WEFT_LOG="debug",
                        WEFT_LIVENESS=os.environ["WEFT_LIVENESS"], WEFT_JOIN_TIMEOUT=f"{patience(seconds):.0f}s", **more)
        nodes = [subprocess.Popen(["nsenter", f"--net={HOSTS[i]}", "--", *([program] if program else [PEER, "1", end])],
                                  env=dict(env, WEFT_RANK=str(i), **({"WEFT_OFI_PROVIDER": list} if list else {})),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for i, list in enumerate(lists)]
        try:
            return [(*node.communicate(timeout=2 * LIMIT), node.returncode) for node in nodes]
        finally:
            for node in nodes:
                node.kill()
                node.wait()

    def check(self, lists, pairs, end="leave", **more):
        """All operations work between all nodes, and pairs[i][k] is the provider that node i uses for node k."""
        found = self.nodes(lists, end, **more)
        for i, (out, err, status) in enumerate(found):
            if end == "leave" or i != len(lists) - 1:
                self.assertEqual(status, 0, err)
            self.assertIn(f"node {i} of {len(lists)}: all is well", out)
            used = {int(k): p for k, p in re.findall(r"debug: node (\d+) has the address \S+ \(provider (\S+)\)$", err, re.M)}
            self.assertEqual(used, pairs[i], err)
        return found

    def test_same(self):
        """One device serves all pairs."""
        for _, err, _ in self.check([BOTH, BOTH, BOTH], [{1: NET, 2: NET}, {0: NET, 2: NET}, {0: NET, 1: NET}]):
            said = re.findall(r"info: this node uses libfabric's provider (.*)", err)
            self.assertEqual(len(said), 1, err)
            self.assertRegex(said[0], r"^net at address 10\.77\.0\.\d:\d+: data travels in the clear, and only joining is authenticated "
                                      r"\(man weft-networks\)$")

    def test_by_themselves(self):
        """Nodes with a list meet one that takes the best of its libfabric."""
        self.check(["", RXM], [{1: RXM}, {0: RXM}])

    def test_each_pair(self):
        """Two nodes use the better provider with each other, and another one with the third."""
        pairs = [{1: NET, 2: RXM}, {0: NET, 2: RXM}, {0: RXM, 1: RXM}]
        self.check([BOTH, BOTH, RXM], pairs)
        self.check([BOTH, BOTH, RXM], pairs, "kill")

    def test_order(self):
        """The order in the list of the node with the lower number decides."""
        self.check([f"{RXM},{NET}", BOTH], [{1: RXM}, {0: RXM}])
        self.check([BOTH, f"{RXM},{NET}"], [{1: NET}, {0: NET}])

    def test_absent(self):
        """A provider that the host does not have, or that cannot be opened, is not chosen."""
        self.check([f"psm9,{RXM}", BOTH], [{1: RXM}, {0: RXM}])
        with subprocess.Popen(["nsenter", f"--net={HOSTS[0]}", "--", sys.executable, "-c",
                               f"import socket, sys; s = socket.create_server(('{COORD}', 7655)); print(flush=True); sys.stdin.read()"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taken:
            taken.stdout.readline()
            (_, err, _), _ = self.check([BOTH, BOTH], [{1: RXM}, {0: RXM}], FI_NET_PORT_LOW_RANGE="7655", FI_NET_PORT_HIGH_RANGE="7655")
            taken.stdin.close()
        self.assertRegex(err, r"info: provider net of libfabric: .*; weft uses another provider")

    def test_poor(self):
        """A provider without RMA; one that takes only small messages, and copies nothing that it sends; and one whose queue reports completions
        twice, and errors without a request of the node."""
        for how in ("messages", "small", "confused"):
            with self.subTest(how):
                self.check([NET, NET], [{1: NET}, {0: NET}], WEFT_OFI_LIBRARY=POOR, POOR_LIBRARY=how)

    def test_regions(self):
        """Providers that need memory registered, and regions bound to the endpoint. Nodes may join later, too."""
        for how in ("regions of efa", "regions of cxi", "regions of both"):
            with self.subTest(how):
                self.check([NET, NET], [{1: NET}, {0: NET}], WEFT_OFI_LIBRARY=POOR, POOR_LIBRARY=how)
                env = clean_env(WEFT_TRANSPORT="ofi", WEFT_OFI_PROVIDER=NET, WEFT_OFI_LIBRARY=POOR, POOR_LIBRARY=how,
                                WEFT_LIVENESS=os.environ["WEFT_LIVENESS"])
                done = subprocess.run([REJOIN, "test_from_one"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, timeout=2 * LIMIT, check=False)
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_polled(self):
        """A provider that wakes nobody. Readers, who sleep elsewhere while the progress thread works for them, poll."""
        poor = {"WEFT_OFI_LIBRARY": POOR, "POOR_LIBRARY": "polled"}
        self.check([NET, NET], [{1: NET}, {0: NET}], **poor)
        for way, more in (("polls", poor), ("sleeps", {})):
            for i, (out, err, status) in enumerate(self.nodes([NET, NET], program=POLLED, **more)):
                self.assertEqual((out, status), (f"node {i} {way}\n", 0), err)

    def test_slow_path(self):
        """One node has a provider for a faster network that the other has not; or cannot open it."""
        def first_only(how):
            env = clean_env(WEFT_SIZE="2", WEFT_COORD=f"{COORD}:7654", WEFT_TRANSPORT="ofi", WEFT_POOL="16M",
                            WEFT_LIVENESS=os.environ["WEFT_LIVENESS"], WEFT_JOIN_TIMEOUT=f"{LIMIT:.0f}s")
            poor = {"WEFT_OFI_LIBRARY": POOR, "POOR_LIBRARY": how}
            nodes = [subprocess.Popen(["nsenter", f"--net={HOSTS[i]}", "--", PEER, "1", "leave"],
                                      env=dict(env, WEFT_RANK=str(i), **({} if i else poor)), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
            ends = [(*node.communicate(timeout=2 * LIMIT), node.returncode) for node in nodes]
            self.assertEqual([(out, status) for out, _, status in ends], [(f"node {i} of 2: all is well\n", 0) for i in range(2)], ends)
            return [err for _, err, _ in ends]

        here, there = first_only("efa")
        self.assertRegex(here, r"warn: node 1 is reached over provider net of libfabric, although this node has the faster efa: `weft doctor` on that")
        self.assertRegex(there, r"warn: node 0 is reached over provider net of libfabric, although that node has the faster efa: `weft doctor` says")
        here, there = first_only("efa closed")
        self.assertRegex(here, r"warn: provider efa of libfabric: .*; weft uses another provider")
        self.assertEqual(there, "")

    def test_topo(self):
        """Nodes of which each has a provider for a faster network use TCP: it cannot be opened, or a setting leaves it unused."""
        for poor, named in (("efa closed", ""), ("efa", NET)):
            done = subprocess.run(["nsenter", f"--net={HOSTS[0]}", "--", WEFT, "topo", "-n", "2", "--time", "1ms"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False,
                                  env=clean_env(WEFT_TRANSPORT="ofi", WEFT_OFI_LIBRARY=POOR, POOR_LIBRARY=poor, WEFT_OFI_PROVIDER=named))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("1 pair of nodes (the first: 0 and 1) use TCP, although libfabric has the faster provider efa on both hosts", done.stderr)
            for line in done.stdout.splitlines()[1:3]:
                self.assertRegex(line, f"^ *[01]  .* {NET} 127\\.0\\.0\\.1:\\d+$")  # the node's network, because it has no RDMA device

    def test_doctor(self):
        """A setting leaves a better provider than TCP unused."""
        def findings(**more):
            done = subprocess.run([WEFT, "doctor", "--json"], env=clean_env(WEFT_OFI_LIBRARY=POOR, POOR_LIBRARY="efa", **more), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT, check=False)
            return [f["seen"] for f in json.loads(done.stdout)["findings"] if f["id"] == "slow-network"]

        self.assertEqual(findings(), [])
        self.assertEqual(findings(WEFT_OFI_PROVIDER="efa,net"), [])
        self.assertEqual(findings(WEFT_OFI_PROVIDER="tcp"), ["WEFT_OFI_PROVIDER is tcp; libfabric has the provider efa"])

    def test_none(self):
        found = self.nodes([NET, RXM], seconds=5)
        self.assertTrue(all(status for _, _, status in found), found)
        said = "".join(err for _, err, _ in found)
        self.assertRegex(said, "node 0 and this node have no provider of libfabric in common: that node can use net, net;ofi_rxm, and "
                               "this node can use tcp;ofi_rxm. Set WEFT_OFI_PROVIDER on both nodes to a provider that both hosts have")

    def test_not_a_list(self):
        (_, err, status), _ = self.nodes(["net,,tcp", NET], seconds=2)
        self.assertNotEqual(status, 0)
        self.assertIn("WEFT_OFI_PROVIDER 'net,,tcp': expected names of providers, with commas between them", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]], verbosity=2)
