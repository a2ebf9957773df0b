#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft gpus, with a CUDA driver for tests.

Usage: test_gpus.py PATH-OF-WEFT FOLDER-OF-FAKE-CUDA-DRIVERS
"""
import json
import os
import subprocess
import sys
import unittest

WEFT, CUDA = (os.path.abspath(a) for a in sys.argv[1:3])


def weft(*args, driver="driver", code=0, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "CUDA_", "FAKE_"))}
    p = subprocess.run([WEFT, *args], capture_output=True, text=True, timeout=60, check=False,
                       env={**env, "LD_LIBRARY_PATH": os.path.join(CUDA, driver), **more})
    assert p.returncode == code, p.stdout + p.stderr
    return p.stdout or p.stderr


class Gpus(unittest.TestCase):
    def test_all(self):
        gpus = {g["name"]: g for g in json.loads(weft("gpus", "--json", FAKE_CUDA="gpus=4"))}
        self.assertEqual([n for n in gpus if n.startswith("cuda")], ["cuda:0", "cuda:1", "cuda:2", "cuda:3"])
        self.assertEqual(list(gpus)[-1], "host")
        self.assertEqual((gpus["cuda:1"]["model"], gpus["cuda:1"]["pci"], gpus["cuda:1"]["usable"]), ("Fake GPU 1", "0000:f1:00.0", True))
        self.assertEqual(gpus["cuda:1"]["nvlink_peers"], ["cuda:0", "cuda:2"])
        self.assertEqual(gpus["cuda:3"]["nvlink_peers"], [])
        self.assertEqual((gpus["cuda:0"]["no_rdma"], bool(gpus["host"]["no_rdma"])), ("", True))
        self.assertEqual((gpus["host"]["usable"], gpus["host"]["pci"], gpus["host"]["rdma"]), (True, "", ""))

    def test_table(self):
        lines = weft("gpus").splitlines()
        self.assertRegex(lines[0], r"^gpu +model +memory +PCIe +most +NVLink +nearest RDMA +use$")
        self.assertRegex(lines[1], r"^cuda:0 +Fake GPU 0 +64 MiB .* yes$")
        self.assertRegex(lines[-1], r"^host .* yes$")

    def test_no_rdma(self):
        for words, why in ("no-dmabuf", "gives no dmabufs"), ("no-rdma", "kind of memory that arenas use"):
            self.assertIn(why, json.loads(weft("gpus", "--json", FAKE_CUDA=words))[0]["no_rdma"])

    def test_doctor(self):
        """The GPUs of this host are among the facts; without an RDMA device there is nothing to repair."""
        got = json.loads(weft("doctor", "--json", code=1, WEFT_VERBS_LIBRARY="/nonexistent", FAKE_CUDA="gpus=2"))
        self.assertEqual([(g["gpu"], g["direct"]) for g in got["gpus"]], [("cuda:0", False), ("cuda:1", False)])
        self.assertNotIn("gpu-staged", [f["id"] for f in got["findings"]])
        remedies = [json.loads(weft("gpus", "--json", FAKE_CUDA=words))[0]["no_rdma_remedy"] for words in ("no-dmabuf", "no-rdma", "")]
        self.assertEqual([bool(r) for r in remedies], [True, False, False])

    def test_no_driver(self):
        names = [g["name"] for g in json.loads(weft("gpus", "--json", driver="old"))]
        self.assertFalse([n for n in names if n.startswith("cuda")])
        self.assertEqual(names[-1], "host")

    def test_usage(self):
        self.assertIn("no argument is expected", weft("gpus", "x", code=2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
