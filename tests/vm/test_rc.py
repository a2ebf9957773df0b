#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft over the kernel's own software RDMA (rdma_rxe): two virtual machines, each with a kernel of its own, as one cluster;
and the tests of several nodes inside one machine, also over libfabric's provider for such devices.

Emulated processors are slow: without WEFT_TEST_LONG=1 it is two machines of which one is killed, and one of the programs in
one machine; with it, everything, in five to nine minutes.

Usage: test_rc.py Between|Inside|Libfabric RUN PEER TEST...    (tests/vm/run; multi_peer; programs of tests/multi)
"""
import os
import subprocess
import sys
import unittest

WHICH = sys.argv[1]
RUN, PEER, *TESTS = [os.path.abspath(path) for path in sys.argv[2:]]

# Runs on both machines; the node of the second one ends in the way that `end` names. Then its machine's command ends, too.
NODE = """
export WEFT_RANK=$((VM_INDEX - 1)) WEFT_SIZE=2 WEFT_COORD=10.77.0.1:7654 WEFT_POOL=16M WEFT_SECRET=of-the-test
export WEFT_DEADLINE=120s WEFT_JOIN_TIMEOUT=60s WEFT_LIVENESS={liveness}
case $VM_INDEX-{end} in
2-leave|1-*) exec {peer} {times} {end} ;;
2-kill) {peer} {times} {end}; [ $? = 137 ] ;;
2-stop) {peer} {times} {end} & for i in $(seq 600); do
        case $(cut -d' ' -f3 /proc/$!/stat) in T) break ;; esac; sleep 0.2; done
    while grep -q ' 01 [0-9A-F]*:' /proc/net/tcp; do sleep 0.5; done ;; # until node 0 ends the connection
2-cut) {peer} {times} {end} | while read -r line; do
        echo "$line"; case $line in 'cut here') ip link set eth0 down ;; esac; done ;;
esac
"""


def vm(*command, machines=1, timeout=400, env=(), modules="rdma_rxe"):
    done = subprocess.run([sys.executable, RUN, "--modules", modules, "--machines", str(machines),
                           "--timeout", str(timeout), *(f"--env={pair}" for pair in env), "--", *command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 77:  # no virtual machine is to be had
        sys.stderr.write(done.stdout)
        os._exit(1 if os.environ.get("CI") else 77)
    return done


LONG = os.environ.get("WEFT_TEST_LONG") == "1"
long_only = unittest.skipUnless(LONG, "one of the long forms (WEFT_TEST_LONG=1)")


class Between(unittest.TestCase):
    def two(self, end, liveness="5s", times=20):
        done = vm("sh", "-c", NODE.format(peer=PEER, end=end, times=times, liveness=liveness), machines=2)
        self.assertEqual(done.returncode, 0, done.stdout)
        for machine in (1, 2):
            self.assertIn(f"vm{machine}| node {machine - 1} of 2: all is well", done.stdout)
        if end != "leave":
            self.assertIn("vm1| node 0: node 1 is dead after", done.stdout)
        sys.stderr.write("".join(f"  {line}\n" for line in done.stdout.splitlines() if " dead " in line))
        return done.stdout

    @long_only
    def test_two_machines(self):
        self.two("leave", times=100)

    def test_killed(self):
        self.two("kill", times=20 if LONG else 5)

    @long_only
    def test_stopped(self):
        """A stopped process, whose host's kernel still answers: it is declared dead later than a host that is cut off."""
        self.assertIn("although its host answers", self.two("stop", liveness="2s"))

    @long_only
    def test_cable_cut(self):
        """The machine is cut off, and no connection reports that."""
        self.assertNotIn("although its host answers", self.two("cut"))


class Inside(unittest.TestCase):
    @long_only
    def test_two_devices(self):
        """Two of the kernel's devices, on two interfaces: large puts and gets use both."""
        fabric = next(test for test in TESTS if test.endswith("_fabric"))
        done = vm("sh", "-ec", """
            ip link show dummy0 >/dev/null 2>&1 || ip link add dummy0 type dummy
            ip addr add 10.78.0.1/24 dev dummy0
            ip link set dummy0 up
            rdma link add rxe1 type rxe netdev dummy0
            "$1" """, "sh", fabric, modules="rdma_rxe,dummy", timeout=900,
                  env=("WEFT_TRANSPORT=rc", "WEFT_DEADLINE=120s", "TEST_DIVIDE=100", "TEST_HANG=200", "WEFT_POOL=64M", "WEFT_STRIPE=32K",
                       "WEFT_LOG=debug"))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("device rxe1 reaches node 1", done.stdout)

    def test_one_machine(self):
        # Registering a pool touches all of it, which takes long in an emulated machine; only one test needs a large one.
        loop = """for test in "$@"; do
            case $test in *_fabric) WEFT_POOL=64M ;; *) WEFT_POOL=16M ;; esac; export WEFT_POOL
            $test >/tmp/said 2>&1 && echo "$test passed" || { echo "$test ended with $?"; cat /tmp/said; }
        done"""
        tests = TESTS if LONG else [test for test in TESTS if test.endswith("_fabric")]
        done = vm("sh", "-c", loop, "sh", *tests, timeout=900,
                  env=("WEFT_TRANSPORT=rc", "WEFT_DEADLINE=120s", "TEST_DIVIDE=400", "TEST_HANG=200"))
        self.assertEqual([test for test in tests if f"{test} passed\n" not in done.stdout], [], done.stdout)


class Libfabric(unittest.TestCase):
    def test_verbs(self):
        """The provider verbs;ofi_rxm of libfabric: what the fabric does, a node that is killed; and that it is refused where it would crash."""
        script = """
            pair() { WEFT_SIZE=2 WEFT_COORD=unix:@vm WEFT_RANK=1 "$peer" 1 $1 & WEFT_SIZE=2 WEFT_COORD=unix:@vm WEFT_RANK=0 "$peer" 1 $1; wait; }
            peer=$0
            WEFT_POOL=64M $1 && echo fabric passed
            pair kill
            unset FI_OFI_RXM_USE_SRX
            pair leave"""
        fabric = next(test for test in TESTS if test.endswith("_fabric"))
        # The device has 32767 entries a completion queue at most, and ofi_rxm asks for 256 for each node of FI_UNIVERSE_SIZE (256).
        done = vm("sh", "-c", script, PEER, fabric, modules="rdma_rxe,rdma_ucm",
                  env=("WEFT_TRANSPORT=ofi", "WEFT_OFI_PROVIDER=verbs;ofi_rxm", "WEFT_OFI_INTERFACE=eth0", "FI_OFI_RXM_USE_SRX=1",
                       "FI_UNIVERSE_SIZE=16", "WEFT_POOL=16M", "WEFT_DEADLINE=120s", "WEFT_JOIN_TIMEOUT=120s", "TEST_DIVIDE=400", "TEST_HANG=200"))
        for said in ("fabric passed\n", "node 0: node 1 is dead after", "set FI_OFI_RXM_USE_SRX=1 on all nodes"):
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], WHICH], verbosity=2)
