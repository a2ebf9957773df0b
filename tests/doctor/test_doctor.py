#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft doctor on captured outputs: for each directory here, the findings that its file `expected` lists, in order.

Usage: test_doctor.py PATH-OF-WEFT
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "multi"))
from processes import clean_env  # pylint: disable=wrong-import-position

WEFT = os.path.abspath(sys.argv[1])
CASES = sorted(os.path.basename(os.path.dirname(p)) for p in glob.glob(os.path.join(HERE, "*", "expected")))


def doctor(*args):
    return subprocess.run([WEFT, "doctor", *args], capture_output=True, text=True, timeout=60, check=False,
                          env=clean_env(WEFT_VERBS_LIBRARY="/nonexistent"))


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.write(text)


def findings(case):
    p = doctor("--json", "--facts", os.path.join(HERE, case))
    return p.returncode, json.loads(p.stdout)


class Cases(unittest.TestCase):
    def test_each(self):
        self.assertGreater(len(CASES), 30)
        for case in CASES:
            with self.subTest(case=case):
                with open(os.path.join(HERE, case, "expected"), encoding="utf-8") as f:
                    expected = f.read().split()
                code, got = findings(case)
                self.assertEqual([f["id"] for f in got["findings"]], expected)
                for f in got["findings"]:
                    self.assertTrue(f["what"] and f["seen"] and f["remedy"])
                    self.assertFalse(any("%" in f[k] for k in ("what", "seen")))
                self.assertEqual(code, 1 if any(f["stops"] for f in got["findings"]) else 0)
                self.assertEqual(got["ok"], code == 0)
                text = doctor("--facts", os.path.join(HERE, case)).stdout
                for i, f in enumerate(got["findings"]):
                    self.assertIn(f"{i + 1}. {f['what']}", text)
                if not expected:
                    self.assertIn("Nothing found that prevents RDMA here.", text)

    def test_every_finding_has_a_case(self):
        got = {f["id"] for case in CASES for f in findings(case)[1]["findings"]}
        self.assertEqual(got, {"no-library", "old-system", "slow-path", "thunderbolt-4", "not-enabled", "no-access", "no-device", "port-down",
                               "no-gid", "no-domains", "no-queue-pairs", "device-error", "no-connections", "bridge", "memlock", "no-network", "slow-network",
                               "gpu", "gpu-staged", "unreadable-fact"})


class Words(unittest.TestCase):
    def only(self, case):
        return findings(case)[1]["findings"][0]

    def test_a_gpu_s_link(self):
        self.assertIn("NVIDIA RTX PRO 5000 Blackwell: link x4 at 16.0 GT/s", self.only("mac-gpu")["seen"])
        self.assertIn("0000:17:00.0: link x8 at 16.0 GT/s PCIe; its driver is vfio-pci", self.only("linux-gpu")["seen"])

    def test_a_device_of_libfabric(self):
        self.assertIn("only by libfabric (ofi), if that has a provider for it, as for EFA", self.only("linux-efa")["remedy"])

    def test_why_a_slow_network(self):
        def said(case):
            code, got = findings(case)
            return [(f["what"], f["seen"], f["remedy"]) for f in got["findings"] if f["id"] == "slow-network"], code

        ((what, seen, do),), code = said("linux-efa-no-provider")
        self.assertEqual((what, seen, code), ("This host has an EFA adapter, but nodes use TCP, which is slower, because libfabric has no provider for it",
                                              "0000:00:06.0 on PCI, driver efa; libfabric has no provider efa", 1))
        self.assertIn("Use a libfabric that has the provider efa", do)
        self.assertEqual(said("linux-efa-works"), ([], 0))
        self.assertIn("by libfabric (ofi), not by verbs", self.only("linux-efa-works")["remedy"])
        ((_, seen, _),), _ = said("linux-slingshot-no-libfabric")
        self.assertIn("driver cxi_ss1; libfabric cannot be loaded", seen)
        ((what, seen, do),), _ = said("linux-omni-path-no-driver")
        self.assertIn("because the adapter has no driver", what)
        self.assertIn("without a driver; libfabric has no provider opx", seen)
        self.assertTrue(do.startswith("Load its driver (hfi1); see `dmesg`. Use a libfabric"))
        ((what, seen, do),), _ = said("linux-provider-unused")
        self.assertIn("slower than libfabric's provider cxi, because of WEFT_OFI_PROVIDER", what)
        self.assertEqual(seen, "WEFT_OFI_PROVIDER is tcp;ofi_rxm,net; libfabric has the provider cxi")
        ((what, seen, do),), _ = said("linux-interface-set")
        self.assertEqual(seen, "WEFT_OFI_INTERFACE is eth0; libfabric has the provider psm3, which uses no network interface")
        self.assertIn("WEFT_OFI_PROVIDER=psm3,net", do)

    def test_why_no_network(self):
        def said(case):
            (f,) = [f for f in findings(case)[1]["findings"] if f["id"] == "no-network"]
            text = doctor("--facts", os.path.join(HERE, case)).stdout
            self.assertIn("can still use shared memory, but cannot reach other hosts.", text)
            self.assertNotIn("TCP to other hosts", text)
            return f["what"], f["seen"], f["remedy"]

        what, seen, do = said("linux-slingshot-no-libfabric")
        self.assertEqual((what, seen), ("Nodes on this host cannot reach other hosts, because libfabric cannot be used",
                                        "libfabric cannot be loaded: libfabric.so.1: cannot open shared object file"))
        self.assertIn("libfabric1", do)
        what, seen, do = said("linux-interface-unknown")
        self.assertEqual((what, seen), ("Nodes on this host cannot reach other hosts, because of WEFT_OFI_INTERFACE",
                                        "WEFT_OFI_INTERFACE is wg0; this host has no such network interface or address"))
        self.assertTrue(do.startswith("Unset WEFT_OFI_INTERFACE, or set it to an interface"))
        _, seen, do = said("linux-provider-unknown")
        self.assertEqual(seen, "WEFT_OFI_PROVIDER is foo,psm2; this host has no such provider of libfabric")
        self.assertTrue(do.startswith("Unset WEFT_OFI_PROVIDER, or set it to a provider"))

    def test_adapters_that_are_no_finding(self):
        with tempfile.TemporaryDirectory() as d:
            for name in os.listdir(os.path.join(HERE, "linux-omni-path-no-driver")):
                shutil.copy(os.path.join(HERE, "linux-omni-path-no-driver", name), d)
            write(d, "devices.json", json.dumps([{"device": "hfi1_0", "transport": "rc", "usable": True}]))  # nodes use it, not TCP
            with open(os.path.join(d, "pci.txt"), "a", encoding="utf-8") as f:  # a network adapter of a maker of GPUs
                f.write("0000:00:0a.0 class=0x020000 vendor=0x10de device=0x0373 driver=forcedeth width=1 max_width=1 speed=2.5_GT/s\n")
            self.assertEqual([f["what"] for f in json.loads(doctor("--json", "--facts", d).stdout)["findings"]], [])

    def test_memory_of_gpus(self):
        code, got = findings("linux-gpu-direct")
        self.assertEqual((code, [(g["gpu"], g["direct"], g["device"]) for g in got["gpus"]]),
                         (0, [("cuda:0", True, "mlx5_0"), ("cuda:1", True, "mlx5_0")]))
        text = doctor("--facts", os.path.join(HERE, "linux-gpu-direct")).stdout
        self.assertIn("\nGPU cuda:1 (NVIDIA H100 80GB HBM3): mlx5_0 accesses its memory directly (dmabuf)", text)
        got = findings("linux-gpu-staged")[1]
        self.assertEqual([g["direct"] for g in got["gpus"]], [False] * 3)
        self.assertEqual(sorted(f["seen"].split(":  ")[0][:14] for f in got["findings"]), ["cuda:0, cuda:1", "cuda:2: the GP"])
        self.assertTrue(any("open kernel modules" in f["remedy"] for f in got["findings"]))
        self.assertIn("cuda:2 (NVIDIA H100 80GB HBM3): data between its memory and other hosts is copied through the host's memory: the GPU does not let",
                      doctor("--facts", os.path.join(HERE, "linux-gpu-staged")).stdout)
        self.assertIn("mlx5_0 cannot register dmabufs", self.only("linux-gpu-no-dmabuf")["seen"])
        self.assertIn("rdma-core 34", self.only("linux-gpu-no-dmabuf")["remedy"])
        self.assertEqual(self.only("linux-gpu-rdma-off")["remedy"], "Unset WEFT_GPU_RDMA")

    def test_the_device_that_a_gpu_s_memory_is_registered_with(self):
        """The fastest one, or the one that settings name; not the nearest to the GPU, which is named, too."""
        def device(name, gbits, dmabuf):
            return {"device": name, "transport": "rc", "usable": True, "gbits": gbits, "traits": {"dmabuf": dmabuf}}
        def seen(limits):
            write(d, "limits.txt", limits)
            got = json.loads(doctor("--json", "--facts", d).stdout)["gpus"][0]
            return got["device"], got["nearest"], got["direct"]
        with tempfile.TemporaryDirectory() as d:
            for name in "system.txt", "library.txt", "gpus.json":
                shutil.copy(os.path.join(HERE, "linux-gpu-direct", name), d)
            write(d, "devices.json", json.dumps([device("mlx5_0", 100, True), device("mlx5_1", 400, True), device("mlx5_2", 400, False)]))
            self.assertEqual(seen(""), ("mlx5_1", "mlx5_0", True))
            self.assertIn("mlx5_0 may be nearer to it (`weft gpus`): to use mlx5_0, name it first in WEFT_RAILS",
                          doctor("--facts", d).stdout)
            self.assertEqual(seen("device: mlx5_0\n"), ("mlx5_0", "", True))
            self.assertEqual(seen("device: mlx5_2\n"), ("mlx5_2", "mlx5_0", False))
            self.assertEqual(seen("device: mlx5_7\n"), ("", "", False))

    def test_a_gpu_without_an_rdma_device(self):
        with tempfile.TemporaryDirectory() as d:
            for name in "system.txt", "library.txt", "limits.txt":
                shutil.copy(os.path.join(HERE, "linux-gpu-direct", name), d)
            shutil.copy(os.path.join(HERE, "linux-gpu-direct", "gpus.json"), d)
            write(d, "devices.json", "[]")
            self.assertNotIn("gpu-staged", doctor("--json", "--facts", d).stdout) # nothing that could be repaired on this host
            self.assertIn("no RDMA device of this host reads and writes", doctor("--facts", d).stdout)

    def test_remedies_name_the_interface(self):
        self.assertIn("ifconfig en3 inet 169.254.10.1/16 alias", self.only("mac-no-gid")["remedy"])
        self.assertIn("ip address add 169.254.10.1/16 dev eth0", self.only("linux-no-gid")["remedy"])

    def test_each_interface_has_an_address_of_its_own(self):
        def proposed(*devices, interfaces=None):
            with tempfile.TemporaryDirectory() as d:
                write(d, "system.txt", "ProductName: macOS\nProductVersion: 26.3\n")
                write(d, "devices.json", json.dumps(list(devices)))
                if interfaces:
                    write(d, "interfaces.txt", interfaces)
                got = json.loads(doctor("--json", "--facts", d).stdout)["findings"]
            self.assertFalse(any("ifconfig" in f["seen"] for f in got))
            return [re.match(r"Run sudo ifconfig (\S+) inet (\S+)/16 ", f["remedy"]).groups() for f in got]

        without = [{"device": f"rdma_en{i}", "interface": f"en{i}", "usable": False, "reason": "no-gid", "why_not":
                    f"rdma_en{i}: no usable GID. Give its network interface an IPv4 address: sudo ifconfig en{i} inet "
                    "169.254.10.1/16 alias"} for i in (2, 3)]
        works = {"device": "rdma_en4", "interface": "en4", "usable": True, "gids": [{"index": 1, "gid": "::ffff:169.254.10.1"}]}
        self.assertEqual(proposed(*without), [("en2", "169.254.10.1"), ("en3", "169.254.11.1")])
        self.assertEqual(proposed(*without, works), [("en2", "169.254.11.1"), ("en3", "169.254.12.1")])
        self.assertEqual(proposed(*without, interfaces="en5: flags=8863<UP>\n\tinet 169.254.11.1 netmask 0xffff0000\n"
                                                       "\tinet 169.254.10.17 netmask 0xffff0000\n"),
                         [("en2", "169.254.10.1"), ("en3", "169.254.12.1")])

    def test_what_is_not_understood_is_said(self):
        """A file that cannot be parsed: the finding names the file, the place and the reason, and the doctor does not say that it found
        nothing."""
        for name, text, why in (
                ("devices.json", "[{", r"devices\.json: not JSON: line 1, column 2: .+"),
                ("devices.json", "", r"devices\.json: not JSON: .*"),
                ("devices.json", "{}", r"devices\.json: not a list of devices"),
                ("devices.json", '[{"device": "a", "usable": true}, 7]', r"devices\.json: entry 2 of the list is not a device: .*"),
                ("devices.json", '[{"device": "a", "usable": "yes"}]', r"devices\.json: entry 1 of the list is not a device: .*"),
                ("allocation.txt", "a domain 0\n\na b c\n", r'allocation\.txt: line 3, "a b c": expected "DEVICE domain ERRNO".*'),
                ("allocation.txt", "a domain\n", r'allocation\.txt: line 1, "a domain": .*'),
                ("allocation.txt", "a domain 1x\n", r"allocation\.txt: line 1, .*"),
                ("allocation.txt", "a domain 0 0\n", r"allocation\.txt: line 1, .*"),
                ("gpus.json", "{", r"gpus\.json: not JSON: .*"),
                ("gpus.json", "7", r"gpus\.json: not .*"),
                ("gpus.json", "[{\"name\": 1}]", r"gpus\.json: entry 1 of the list is not a GPU: .*"),
                ("networks.json", "{", r"networks\.json: not JSON"),
                ("networks.json", '[{"provider": ""}]', r"networks\.json: not a list of providers, each with .*"),
                ("limits.txt", "memlock: x\n", r"limits\.txt: line 1, .*"),
                ("uverbs.txt", "/dev/infiniband/uverbs0 perhaps\n", r"uverbs\.txt: line 1, .*"),
                ("library.txt", "\n", r"library\.txt: line 1, .*")):
            with self.subTest(name=name, text=text), tempfile.TemporaryDirectory() as d:
                write(d, "system.txt", "Linux 6.1\n")
                write(d, name, text)
                p = doctor("--facts", d)
                self.assertEqual((p.returncode, p.stderr), (1, ""))
                self.assertIn(f"1. {name} cannot be parsed", p.stdout)
                self.assertRegex(p.stdout, "\n   seen: " + why + "\n")
                self.assertNotIn("Nothing found", p.stdout)
                self.assertNotIn("0 RDMA devices", p.stdout)
                got = json.loads(doctor("--json", "--facts", d).stdout)
                self.assertEqual((got["ok"], [f["id"] for f in got["findings"]]), (False, ["unreadable-fact"]))

    def test_thunderbolt_4_is_nobody_s_mistake(self):
        self.assertIn("that does not help", self.only("mac-thunderbolt-4")["seen"])

    def test_the_bridge_names_its_ports(self):
        self.assertIn("members en2, en3, which are ports of RDMA devices", self.only("mac-bridge")["seen"])

    def test_one_port_that_works_is_enough(self):
        code, got = findings("mac-one-cable-of-three")
        self.assertEqual((code, got["usable_devices"]), (0, 1))


class Directories(unittest.TestCase):
    def test_what_is_saved_can_be_loaded(self):
        with tempfile.TemporaryDirectory() as d:
            live = doctor("--json", "--save", os.path.join(d, "facts"))
            again = doctor("--json", "--facts", os.path.join(d, "facts"))
            self.assertEqual(live.stdout, again.stdout)
            self.assertEqual([f["id"] for f in json.loads(live.stdout)["findings"] if f["stops"]], ["no-library"])

    def test_wrong_ones(self):
        with tempfile.TemporaryDirectory() as d:
            self.assertIn("has no facts", doctor("--facts", d).stderr)
            with open(os.path.join(d, "pci.txt"), "wb") as f:
                f.write(b"x" * (1 << 20) + b"y")
            p = doctor("--facts", d)
            self.assertEqual(p.returncode, 1)
            self.assertIn("more than 1 MiB", p.stderr)
            with open(os.path.join(d, "pci.txt"), "wb") as f:
                f.write(bytes(range(256)) + b"\n\x1b[2J\0\xff vendor=0x10de driver=\x1b[1m \n")
            p = doctor("--facts", d)
            self.assertIn("There is a PCIe GPU", p.stdout)
            self.assertTrue(all(c == "\n" or " " <= c <= "~" for c in p.stdout), p.stdout)
            self.assertEqual(json.loads(doctor("--json", "--facts", d).stdout)["findings"][0]["id"], "gpu")
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(os.path.join(d, "devices.json"))
            self.assertRegex(doctor("--facts", d).stderr, r"/devices\.json cannot be read: .*[Ii]s a directory")
        self.assertIn("is not a directory", doctor("--facts", "/nonexistent").stderr)
        self.assertEqual(doctor("--what").returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
