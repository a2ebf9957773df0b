#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The commands about devices on a Linux kernel's own RDMA device, in a virtual machine.

Usage: test_rxe.py PATH-OF-VM-RUN PATH-OF-WEFT
"""
import json
import os
import subprocess
import sys
import unittest

VM, WEFT = (os.path.abspath(a) for a in sys.argv[1:3])
SCRIPT = """
set -e
for what in 'devices --json' 'doctor --json' 'probe regions --json --count 32 --size 64K' \
    'probe pool --json --count 40 --size 20000' 'probe memory --json' 'probe queue --json --count 16' 'devices --json'; do
    "$0" $what
    echo '%%%%'
done
ip link set eth0 down
"$0" doctor --json || true
"""


class Rxe(unittest.TestCase):
    def test_all(self):
        p = subprocess.run([VM, "--modules", "rdma_rxe", "--", "sh", "-c", SCRIPT, WEFT], capture_output=True, text=True,
                           timeout=280, check=False)
        if p.returncode == 77:
            self.skipTest(p.stderr.strip())
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        devices, doctor, regions, pool, memory, queue, after, down = (json.loads(t) for t in p.stdout.split("%%%%"))

        self.assertEqual([(d["device"], d["usable"], d["transport"], d["interface"]) for d in devices],
                         [("rxe0", True, "rc", "eth0")])
        self.assertEqual((devices[0]["gid"]["index"], devices[0]["gid"]["gid"], devices[0]["gid"]["kind"]),
                         (1, "::ffff:10.77.0.1", "RoCE v2"))
        for kind in ("queue_pairs", "protection_domains", "regions", "completion_queues"):
            self.assertIsNotNone(devices[0]["limits"][kind]["used"])
        self.assertEqual(devices[0]["limits"], after[0]["limits"], "something was left on the device")
        self.assertEqual((doctor["ok"], doctor["usable_devices"]), (True, 1))
        self.assertEqual((regions["regions"], regions["errno"], regions["region_bytes"]), (32, 0, 65536))
        self.assertTrue(pool["ok"])
        self.assertEqual([o["good"] for o in pool["operations"]], [40] * 6)
        registers = {k["kind"]: k["registers"] for k in memory["kinds"]}
        self.assertTrue(registers["malloc"] and registers["memfd, as the pool"] and registers["mmap, private"])
        self.assertEqual(queue["queue_pairs"]["made"], 16)
        self.assertTrue(queue["sends_past_depth"]["tried"])
        self.assertFalse(queue["sends_past_depth"]["past"])
        self.assertEqual(down["findings"][0]["id"], "port-down")

    def test_between_two_machines(self):
        script = """if [ $VM_INDEX = 1 ]; then "$0" probe pool --json --listen 0.0.0.0:7700
            else "$0" probe pool --json --peer $VM_PEER:7700 --count 24 --size 40000 && "$0" devices --json >/dev/null; fi"""
        p = subprocess.run([VM, "--machines", "2", "--modules", "rdma_rxe", "--", "sh", "-c", script, WEFT],
                           capture_output=True, text=True, timeout=280, check=False)
        if p.returncode == 77:
            self.skipTest(p.stderr.strip())
        self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
        self.assertEqual(p.stdout.count('"ok": true'), 2 * (1 + 6), p.stdout)  # both ends: all, and each operation


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
