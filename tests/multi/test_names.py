#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where nodes meet: names with several addresses, of which some lead nowhere; and ports that another program has taken.

Usage: over_network.py tcp,46,2 test_names.py MULTI_PEER

The hosts' names are in an own /etc/hosts, which only this process and those that it starts see; over_network.py has made it the only source.
"""
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from processes import clean_env, patience  # noqa: E402

PEER = os.path.abspath(sys.argv[1])
LIMIT = patience(60)
HOSTS = os.environ["TEST_NAMESPACES"].split(":")
PORT = 7654
FOUR, SIX = "10.77.0.1", "fd77:0::1"
NOBODY = "10.77.0.3"  # nearer to the second host's address than the first host's is, so it is tried first
SILENT = "fd77:0::99"


def on(host, *command, **more):
    return subprocess.run(["nsenter", f"--net={HOSTS[host]}", "--", *command], check=True, **more)


class Taken:
    """A program that listens on a host, and never answers."""
    def __init__(self, host, *addresses, port=PORT):
        code = """import socket, sys
held = [socket.create_server((a, int(sys.argv[1])), family=socket.AF_INET6 if ":" in a else socket.AF_INET) for a in sys.argv[2:]]
print("here", flush=True)
sys.stdin.read()"""
        self.process = subprocess.Popen(["nsenter", f"--net={HOSTS[host]}", "--", sys.executable, "-c", code, str(port), *addresses],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        assert self.process.stdout.readline() == "here\n"

    def __exit__(self, *_):
        self.process.communicate()


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-names-")
        for name, text in (("hosts", ""), ("host.conf", "multi on\n")):
            path = os.path.join(cls.tmp.name, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            if os.path.exists("/etc/" + name):
                subprocess.run(["mount", "--bind", path, "/etc/" + name], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def names(self, *addresses):
        with open(os.path.join(self.tmp.name, "hosts"), "w", encoding="ascii") as file:
            file.write("".join(f"{address} meet\n" for address in addresses))

    def nodes(self, coord, seconds=60, **more):
        """(status, stdout, stderr) of each of two nodes."""
        env = clean_env(WEFT_SIZE="2", WEFT_COORD=coord, WEFT_TRANSPORT="ofi", WEFT_POOL="16M", WEFT_LIVENESS=os.environ["WEFT_LIVENESS"],
                        WEFT_JOIN_TIMEOUT=f"{patience(seconds):.0f}s", WEFT_LOG="info", **more)
        nodes = [subprocess.Popen(["nsenter", f"--net={HOSTS[i]}", "--", PEER, "1", "leave"], env=dict(env, WEFT_RANK=str(i)),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in (0, 1)]
        try:
            return [(*node.communicate(timeout=2 * LIMIT), node.returncode) for node in nodes]
        finally:
            for node in nodes:
                node.kill()
                node.wait()

    def meet(self, coord):
        for i, (out, err, status) in enumerate(nodes := self.nodes(coord)):
            self.assertEqual(status, 0, err)
            self.assertIn(f"node {i} of 2: all is well", out)
        return nodes

    def test_first_is_silent(self):
        """Packets to the first address are lost without a word."""
        on(1, "ip", "neigh", "add", NOBODY, "lladdr", "02:00:00:00:00:99", "dev", "net0", "nud", "permanent")
        self.addCleanup(on, 1, "ip", "neigh", "del", NOBODY, "dev", "net0")
        self.names(NOBODY, FOUR)
        seen = on(1, "getent", "ahostsv4", "meet", capture_output=True, text=True).stdout
        self.assertEqual(seen.split()[0], NOBODY, "the order that this test is about")
        began = time.monotonic()
        self.meet(f"meet:{PORT}")
        self.assertLess(time.monotonic() - began, patience(30))  # less than the time to join

    def test_first_is_gone(self):
        """An IPv6 address that no host has, before an IPv4 one."""
        self.names(SILENT, FOUR)
        self.meet(f"meet:{PORT}")

    def test_one_family_each(self):
        """The first host has both families, the second only one."""
        self.names(SIX, FOUR)
        for family, address, room in (("-6", "fd77:0::2", "/64"), ("-4", "10.77.0.2", "/24")):
            on(1, "ip", family, "addr", "del", address + room, "dev", "net0")
            try:
                self.assertIn(f" at address {'10.77.0.1' if family == '-6' else '[fd77::1]'}:", self.meet(f"meet:{PORT}")[0][1])
            finally:
                on(1, "ip", family, "addr", "add", address + room, "dev", "net0", *(["nodad"] if family == "-6" else []))

    def test_both(self):
        self.names(SIX, FOUR)
        self.meet(f"meet:{PORT}")

    def test_port_taken(self):
        """Another program has the port, perhaps only at one of the name's addresses: node 0 must fail, because nodes would reach the other
        program there."""
        self.names(SIX, FOUR)
        for coord, addresses in ((FOUR, [FOUR]), ("meet", [FOUR]), ("meet", [SIX])):
            with Taken(0, *addresses):
                (_, zero, status), (_, one, other) = self.nodes(f"{coord}:{PORT}", 2)
            self.assertNotEqual(status, 0)
            self.assertNotEqual(other, 0)
            self.assertIn(f"listen at '{coord}:{PORT}': Address already in use; another program listens there: choose another port", zero)
            self.assertIn("node 0", one)

    def test_data_is_silent(self):
        """A firewall lets the nodes join, and drops without an error all that they send each other over libfabric: in bounded time both fail, and
        say why."""
        self.addCleanup(on, 1, "ip", "neigh", "del", "10.77.1.1", "dev", "net1")
        on(1, "ip", "neigh", "add", "10.77.1.1", "lladdr", "02:00:00:00:00:99", "dev", "net1", "nud", "permanent")
        began = time.monotonic()
        (_, zero, status), (_, one, other) = self.nodes(f"{FOUR}:{PORT}", WEFT_OFI_INTERFACE="net1", WEFT_RECONNECT="3s")
        self.assertLess(time.monotonic() - began, patience(30))
        self.assertNotEqual(status, 0)
        self.assertNotEqual(other, 0)
        # The node that gives the other one up first knows the reason; the other only sees that it is gone.
        self.assertRegex(zero + one, r"node \d .* is dead: nothing that was sent to it over \S+ at 10\.77\.1\.\d:\d+ got through for .*firewall")

    def test_loopback(self):
        """An interface that leads to no other host is refused when the nodes join."""
        (_, zero, status), (_, one, other) = self.nodes(f"{FOUR}:{PORT}", WEFT_OFI_INTERFACE="lo")
        self.assertNotEqual(status, 0)
        self.assertNotEqual(other, 0)
        self.assertRegex(zero + one, r"other hosts cannot reach this node at 127\.0\.0\.1:\d+, .* unset WEFT_OFI_INTERFACE, or set it to an interface")

    def test_all_is_silent(self):
        """A firewall drops without an error what a node sends to node 0: both say who is missing when the time to join is over."""
        self.addCleanup(on, 1, "ip", "neigh", "del", FOUR, "dev", "net0")
        on(1, "ip", "neigh", "replace", FOUR, "lladdr", "02:00:00:00:00:99", "dev", "net0", "nud", "permanent")
        (_, zero, status), (_, one, other) = self.nodes(f"{FOUR}:{PORT}", 2)
        self.assertNotEqual(status, 0)
        self.assertNotEqual(other, 0)
        self.assertIn("node 1 of 2 did not join at", zero)
        self.assertIn("cannot connect to '10.77.0.1:7654'", one)
        self.assertIn("firewall", one)

    def test_provider_port_taken(self):
        """libfabric takes a port of its own: the next one of its range, or if there is none, the error names the setting."""
        def ports(first, last):
            return {f"FI_{p}_PORT_{end}_RANGE": str(port) for p in ("NET", "TCP") for end, port in (("LOW", first), ("HIGH", last))}
        with Taken(0, FOUR, port=PORT + 1):
            nodes = self.nodes(f"{FOUR}:{PORT}", **ports(PORT + 1, PORT + 2))
            self.assertEqual([status for _, _, status in nodes], [0, 0], nodes)
            self.assertIn(f" at address {FOUR}:{PORT + 2}", nodes[0][1])
            (_, zero, status), (_, one, other) = self.nodes(f"{FOUR}:{PORT}", 5, **ports(PORT + 1, PORT + 1))
            self.assertNotEqual(status, 0)
            self.assertNotEqual(other, 0)
            for err in (zero, one):
                self.assertIn("PORT_HIGH_RANGE", err)


    def test_no_such_interface(self):
        """An interface that no host has; an address that only the first one has. Each node says so, of itself or of the other."""
        for what, why in (("net7", "'net7' is neither an interface"), ("10.77.1.1", "10.77.1.1 is not an address of this host"),
                          ("fd77:1::1", "fd77:1::1 is not an address of this host")):
            for _, err, status in (nodes := self.nodes(f"{FOUR}:{PORT}", 5, WEFT_OFI_INTERFACE=what)):
                self.assertNotEqual(status, 0)
                self.assertIn(f"WEFT_OFI_INTERFACE: {why}", err)
            if what != "net7":
                self.assertIn(f" at address {what if '.' in what else '[fd77:1::1]'}:", nodes[0][1])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
