#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The commands about devices, on softverbs: their output, their exit status, and that they leave no objects on a device.

Usage: test_commands.py PATH-OF-WEFT PATH-OF-SOFTVERBS PATH-OF-LIBIBVERBS FOLDER-OF-FAKE-CUDA-DRIVERS
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "multi"))
from processes import clean_env, patience, until  # pylint: disable=wrong-import-position

WEFT, SOFTVERBS, LIBRARY, CUDA = (os.path.abspath(a) for a in sys.argv[1:5])

LIMIT = patience(60)  # seconds until something that should have ended is called a failure

# A sanitizer's malloc uses mmap, so a device cannot refuse malloc's memory.
OWN_MALLOC = "san.so" in subprocess.run(["ldd", WEFT], capture_output=True, text=True, check=False).stdout


class Base(unittest.TestCase):
    PROFILE, TOPOLOGY = "generic", ("switch", "2")

    @classmethod
    def setUpClass(cls):
        shm = "/dev/shm"
        # pylint: disable=consider-using-with
        cls.folder = tempfile.TemporaryDirectory(prefix=os.environ.get("TEST_RUN_MARK", "weft") + "-",
                                                 dir=shm if os.access(shm, os.W_OK) else None)
        cls.env = {k: v for k, v in clean_env().items() if not k.startswith("SOFTVERBS_")}
        cls.env.update(SOFTVERBS_DIR=cls.folder.name, SOFTVERBS_FABRIC="test", SOFTVERBS_HOST="0",
                       WEFT_VERBS_LIBRARY=LIBRARY)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.softverbs("up", "--fabric", "test", "--profile", self.PROFILE, *self.TOPOLOGY)

    def tearDown(self):
        try:
            for device in json.loads(self.softverbs("ls", "--json", "--all"))[0]["devices"]:
                used = {k: device[k]["used"] for k in ("qp", "pd", "mr", "cq", "srq")}
                self.assertEqual(set(used.values()), {0}, used)
                self.assertEqual(device["leaked_pd"], 0)
        finally:
            self.softverbs("down", "--fabric", "test", "--force")

    def softverbs(self, *args):
        p = subprocess.run([SOFTVERBS, *args], capture_output=True, text=True, env=self.env, timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def until_data_moves(self):
        def busy():
            return any(d["sent"] > 5 for d in json.loads(self.softverbs("ls", "--json", "--all"))[0]["devices"])

        until("data moves", busy, LIMIT)

    def start(self, *args, host="0"):
        """Starts a command that is ended, if it still runs, when the test ends."""
        # pylint: disable=consider-using-with
        p = subprocess.Popen([WEFT, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**self.env, "SOFTVERBS_HOST": host})
        self.addCleanup(p.__exit__, None, None, None)
        self.addCleanup(p.kill)
        return p

    def weft(self, *args, code=0, **more):
        p = subprocess.run([WEFT, *args], capture_output=True, text=True, env={**self.env, **more}, timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, code, f"weft {' '.join(args)}\n{p.stdout}\n{p.stderr}")
        return p.stdout if code == 0 else p.stderr

    def json(self, *args, **more):
        return json.loads(self.weft(*args, "--json", **more))

    def with_gpu(self, driver="driver", **more):
        return self.json("probe", "memory", LD_LIBRARY_PATH=os.path.join(CUDA, driver), **more)


class Generic(Base):
    def test_devices(self):
        out = self.weft("devices").splitlines()
        self.assertEqual(len(out), 2)
        self.assertRegex(out[1], r"^sv0 +active +Ethernet +\d+ Gb/s +::ffff:[\d.]+ \[1\] .* rc$")
        device = self.json("devices")[0]
        self.assertTrue(device["usable"] and device["traits"]["rc"])
        self.assertEqual((device["transport"], device["gid"]["index"], device["gid"]["kind"]), ("rc", 1, "RoCE v2"))
        self.assertEqual(device["gid"]["why"], "IPv4-mapped, index 1, RoCE v2")
        self.assertIn("<- used: IPv4-mapped, index 1", self.weft("devices", "-v"))

    def test_devices_by_name_and_index(self):
        self.assertEqual(self.weft("devices", "mlx5_0", code=1),
                         "weft devices: no device mlx5_0 on this host; `weft devices` lists them\n")
        self.assertIn("[0]", self.weft("devices", "--gid-index", "0", "sv0"))
        self.assertIn("[0]", self.weft("devices", WEFT_GID_INDEX="0"))
        said = self.weft("devices", "--gid-index", "9")
        self.assertIn("GID index 9, which was asked for, is not set", said)
        self.assertIn("Choose an entry that is set (WEFT_GID_INDEX or --gid-index), or let weft choose", said) # an IPv4 address, the other remedy, is there
        self.assertNotIn("ip address add", said)
        self.assertIn("no usable RDMA device: sv0: GID index 9", self.weft("probe", "regions", "--gid-index", "9", code=1))
        self.assertIn("expected a number", self.weft("devices", "--gid-index", "x", code=2))
        self.assertIn("WEFT_GID_INDEX='x'", self.weft("devices", code=1, WEFT_GID_INDEX="x"))

    def check_settings(self, networks):
        """The list says what a node with these settings does."""
        def listed(**settings):
            return json.loads(self.weft("devices", "--networks", "--json", **settings))

        here = next((n for n in networks if n["address"] == "127.0.0.1" and n["by_itself"]), None)
        self.assertIsNotNone(here)
        self.assertIn("to nodes of this host only", here["use"])
        other = next(n for n in networks if n["provider"] != here["provider"])
        for n in listed(WEFT_OFI_PROVIDER=other["provider"]):
            self.assertEqual(n["used"], n["provider"] == other["provider"])
            self.assertEqual("not used: WEFT_OFI_PROVIDER is " + other["provider"] in n["use"], not n["used"])
        names = list(dict.fromkeys(n["provider"] for n in networks))
        missing = "WEFT_OFI_PROVIDER: this libfabric has no provider 'nope' that weft could use: name one of " + ", ".join(names) + ", or"
        for more in ((), ("--json",)):
            self.assertIn(missing, self.weft("devices", "--networks", *more, code=1, WEFT_OFI_PROVIDER="nope"))
            both = subprocess.run([WEFT, "devices", "--networks", *more], capture_output=True, text=True, timeout=LIMIT, check=False,
                                  env={**self.env, "WEFT_OFI_PROVIDER": "nope," + here["provider"]})
            self.assertEqual((both.returncode, both.stderr.count("no provider"), missing in both.stderr), (0, 1, True), both.stderr)
        self.assertEqual([n["provider"] for n in listed(WEFT_OFI_PROVIDER=",".join(names))], [n["provider"] for n in networks])
        for n in listed(WEFT_OFI_INTERFACE="lo"):
            self.assertEqual(n["used"], n["by_itself"] and n["address"] == "127.0.0.1", n)
            self.assertEqual("not used: WEFT_OFI_INTERFACE is lo" in n["use"], n["by_itself"] and not n["used"])
        self.assertIn("'nowhere0' is neither an interface", self.weft("devices", "--networks", code=1, WEFT_OFI_INTERFACE="nowhere0"))

    def test_networks(self):
        p = subprocess.run([WEFT, "devices", "--networks", "--json"], capture_output=True, text=True, env=self.env, timeout=LIMIT, check=False)
        if p.returncode == 0:  # libfabric is installed
            networks = json.loads(p.stdout)
            self.assertTrue(networks)
            for n in networks:
                self.assertLessEqual({"provider", "interface", "address", "rma", "clear", "by_itself", "tried", "used", "use"}, set(n))
                self.assertEqual("but was never run with it" in n["use"], not n["tried"])
                self.assertEqual(n["used"], n["by_itself"])
                self.assertEqual("in the clear" in n["use"], n["clear"])
            rows = self.weft("devices", "--networks").splitlines()
            self.assertEqual(rows[:2], [f"libfabric {networks[0]['version']}, {networks[0]['library']}", ""])
            self.assertTrue(os.path.isabs(networks[0]["library"]))
            self.assertRegex(rows[2], "^provider +interface +address +rma +use$")
            self.assertEqual([r.split()[0] for r in rows[3:]], [n["provider"] for n in networks])
            self.check_settings(networks)
        self.assertIn("WEFT_OFI_LIBRARY names cannot be loaded: /nonexistent", self.weft("devices", "--networks", code=1, WEFT_OFI_LIBRARY="/nonexistent"))
        self.assertIn("--networks can only be combined with --json", self.weft("devices", "--networks", "sv0", code=2))

    def test_options_behind_words(self):
        self.assertEqual(json.loads(self.weft("devices", "sv0", "--json"))[0]["device"], "sv0")
        self.assertIn("[0]", self.weft("devices", "sv0", "--gid-index", "0"))
        self.assertIn("<- used: IPv4-mapped, index 1", self.weft("devices", "sv0", "-v"))
        self.assertEqual([d["device"] for d in json.loads(self.weft("devices", "sv0", "--json", "sv0"))], ["sv0", "sv0"])
        self.assertIn("no device --json", self.weft("devices", "--", "--json", code=1))
        for sub in ("devices", "plan", "doctor", "topo", "config"):
            self.assertIn(f"weft {sub}: unknown option '--what'\n", self.weft(sub, "word", "--what", code=2))
            self.assertIn(f"weft {sub}: unknown option '-x'\n", self.weft(sub, "word", "--json", "-x", code=2))
        for sub, option in (("devices", "--gid-index"), ("plan", "--peers"), ("doctor", "--facts"), ("topo", "-n")):
            self.assertIn(f"weft {sub}: option '{option}' needs a value\n", self.weft(sub, "word", option, code=2))
            self.assertIn("Usage: ", self.weft(sub, "word", "--help"))
        self.assertIn("unknown option '-x'", self.weft("devices", "--json", "-vx", code=2))
        self.assertEqual(self.json("probe", "--count", "2", "regions")["regions"], 2)
        self.assertIn("unexpected argument 'pool'", self.weft("probe", "regions", "pool", code=2))
        self.assertIn("the probe is missing: name", self.weft("probe", "--json", code=2))
        self.assertEqual(self.weft("run", "-n", "1", "echo", "-n", "--json"), "--json")  # a program's are its own

    def test_no_library(self):
        self.assertIn("/nonexistent", self.weft("devices", code=1, WEFT_VERBS_LIBRARY="/nonexistent"))
        self.assertIn("/nonexistent", self.weft("probe", "regions", code=1, WEFT_VERBS_LIBRARY="/nonexistent"))

    def test_a_port_that_is_down(self):
        self.softverbs("fault", "pull", "--fabric", "test", "0:sv0")
        self.assertIn("not used: port 1 is down", self.weft("devices"))
        self.assertIn("port 1 is down", self.weft("probe", "regions", code=1))
        device = self.json("devices")[0]
        self.assertFalse(device["usable"])
        self.assertIsNone(device["transport"])

    def test_probe_regions_that_are_not_refused(self):
        got = self.json("probe", "regions", "--count", "20", "--size", "64K")
        self.assertEqual((got["device"], got["regions"], got["errno"], got["region_bytes"]), ("sv0", 20, 0, 65536))
        self.assertIn("none of 2 was refused", self.weft("probe", "regions", "--count", "2"))

    def test_probe_regions_time(self):
        """The time that it prints, for each region, against the time that the command takes."""
        for form in ("--json", "--markdown"):
            with self.subTest(form):
                began = time.monotonic()
                said = self.weft("probe", "regions", "--count", "20", "--size", "64K", form)
                took_ns = (time.monotonic() - began) * 1e9
                each_ns = json.loads(said)["register_ns"] if form == "--json" else float(re.search(r" ([\d.]+) us ", said)[1]) * 1000
                self.assertGreater(each_ns, 0)
                self.assertLessEqual(20 * each_ns, took_ns)

    def test_probe_pool(self):
        got = self.json("probe", "pool", "--count", "96", "--size", "20000")
        self.assertTrue(got["ok"])
        self.assertEqual((got["buffers"], got["buffer_bytes"], got["regions"]), (96, 20032, 1))
        self.assertEqual([(o["operation"], o["good"], o["ok"]) for o in got["operations"]],
                         [(name, 96, True) for name in ("send", "receive", "write", "be written", "read", "be read")])
        self.assertIn("| send | 3/3 |", self.weft("probe", "pool", "--count", "3", "--size", "4K", "--markdown"))

    def test_probe_pool_finds_harm(self):
        self.softverbs("fault", "add", "--fabric", "test", "corrupt", "--nth", "5")
        got = subprocess.run([WEFT, "probe", "pool", "--count", "8", "--size", "4K"], capture_output=True, text=True,
                             env=self.env, timeout=LIMIT, check=False)
        self.assertEqual(got.returncode, 1, got.stdout + got.stderr)
        self.assertRegex(got.stdout, r"send +4/8 .*WRONG at offset \d+ of the other region")
        self.assertRegex(got.stdout, r"receive +0/8 .*not tried: send failed, and going on might do damage")

    def test_probe_pool_fails_with_a_reason(self):
        self.assertIn("no device mlx", self.weft("probe", "pool", "--to", "mlx", code=1))
        self.assertIn("no device mlx", self.weft("probe", "pool", "--device", "mlx", code=1))
        for kind in "pool", "queue", "link": # at once: nobody listens there, and that need not be waited for
            self.assertIn("no device mlx", self.weft("probe", kind, "--device", "mlx", "--peer", "127.0.0.1:9", code=1))
        self.assertIn("do not fit into one region", self.weft("probe", "pool", "--size", "1G", "--count", "2", code=1))

    def test_wrong_usage(self):
        self.assertIn("expected regions", self.weft("probe", "everything", code=2))
        self.assertIn("expected a size", self.weft("probe", "pool", "--size", "2", code=2))
        self.assertIn("expected a number", self.weft("probe", "pool", "--count", "0", code=2))
        self.assertIn("exclude each other", self.weft("probe", "pool", "--to", "x", "--peer", "y", code=2))
        self.assertIn("exclude each other", self.weft("probe", "pool", "--json", "--markdown", code=2))
        self.assertIn("is only for", self.weft("probe", "regions", "--to", "x", code=2))
        self.assertIn("are only for", self.weft("probe", "memory", "--peer", "x", code=2))
        self.assertIn("with the probe `link`, expected", self.weft("probe", "link", "--size", "5K", code=2))
        self.assertIn("with the probe `link`, expected", self.weft("probe", "link", "--count", "3", code=2))

    def test_probe_link(self):
        """Two ends on this machine; the proposed settings are accepted by weft."""
        got = self.json("probe", "link", "--count", "4")
        self.assertEqual((got["device"], got["other"], got["harm"]), ("sv0", "sv0", None))
        self.assertEqual([(m["message_bytes"], m["depth"], m["way"]) for m in got["measures"]],
                         [(4096 << i, 4, way) for i in range(9) for way in ("there", "back")])
        self.assertEqual([m for m in got["measures"] if not m["sent"] or not m["bytes_per_second"] or m["damaged"]], [])
        self.assertRegex(got["lanes"], r"^(\d+K:4,)*\d+K:4$")
        self.assertIn(got["lanes"], self.weft("config", WEFT_TB_LANES=got["lanes"]))
        self.assertRegex(self.weft("probe", "link", "--size", "64K", "--count", "8", "--markdown"),
                         r"\| 64 KiB \| - \| - \| - \| [\d.]+ [\d.]+.* \| - \| - \| - \|\n\nWEFT_TB_LANES=64K:8,64K:8 .*"
                         r"; for the tb transport only: rc, which weft uses on sv0, ignores it\n")

    def test_probe_link_whose_other_port_goes_down(self):
        """An error that only the other end can report."""
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        client = self.start("probe", "link", "--peer", where)
        self.until_data_moves()
        self.softverbs("fault", "pull", "--fabric", "test", "1:sv0")
        out, err = client.communicate(timeout=LIMIT)
        self.assertEqual(client.returncode, 1, out + err)
        # Which message it prints depends on which event comes first.
        self.assertRegex(err, "the other end (of the probe has closed the connection|gave up sending)|no more messages arrive")
        self.assertNotIn("WEFT_TB_LANES=", out)
        _, err = server.communicate(timeout=LIMIT)
        self.assertEqual(server.returncode, 1, err)
        self.assertIn("port 1 of sv0 is down: check the cable", err)

    def test_probe_link_stops_at_the_first_harm(self):
        self.softverbs("fault", "add", "--fabric", "test", "refuse", "--verb", "post_recv", "--nth", "1", "--errno", "12")
        p = subprocess.run([WEFT, "probe", "link", "--json"], capture_output=True, text=True, env=self.env, timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, 1, p.stdout)
        self.assertIn("stopped: receives are refused, with messages of 4 KiB, 1 in flight", p.stderr)
        self.assertEqual(json.loads(p.stdout)["measures"], [])

    def test_probe_memory(self):
        kinds = {k["kind"]: k for k in self.json("probe", "memory")["kinds"]}
        for kind in ("malloc", "mmap, private", "mmap, shared", "memfd, as the pool", "a file, mapped shared",
                     "the same memory twice"):
            self.assertTrue(kinds[kind]["registers"], kind)
        self.assertEqual(kinds["mmap, read-only"]["errno"], 14)
        # If the kernel can make a dmabuf of memory, this device accepts it.
        self.assertEqual(kinds["memfd, by dmabuf"]["registers"], kinds["memfd, by dmabuf"]["tried"], kinds["memfd, by dmabuf"])
        self.assertIn("REMOTE_ATOMIC", kinds["malloc"]["access"])

    def test_probe_memory_without_a_gpu(self):
        got = self.json("probe", "memory", LD_LIBRARY_PATH="")
        if got["gpu_why"] != "no GPU: there is no CUDA driver (libcuda.so.1)":
            self.skipTest("this machine has a CUDA driver")
        kinds = {k["kind"]: k for k in got["kinds"]}
        self.assertEqual(got["gpu"], "")
        self.assertEqual(kinds["CUDA device"]["note"], got["gpu_why"])
        self.assertFalse(any(k["gpu"]["tried"] or k["both"] for k in kinds.values()))
        self.assertEqual((kinds["Metal buffer"]["note"], kinds["IOSurface"]["note"]), ("macOS only", "macOS only"))

    def test_probe_memory_with_a_gpu(self):
        """With the fake CUDA driver: which rows are printed, by which call, and that the probe checks the GPU's writes."""
        rows = {k["kind"]: (k["errno"], k["call"], k["gpu"]["call"], k["both"]) for k in self.with_gpu()["kinds"]}
        for kind in ("malloc", "mmap, private", "memfd, as the pool", "a file, mapped shared"):
            self.assertEqual(rows[kind], (0, "ibv_reg_mr", "cuMemHostRegister", True), kind)
        self.assertEqual(rows["mmap, read-only"], (14, "ibv_reg_mr", "cuMemHostRegister", False))
        self.assertEqual(rows["pinned by CUDA"], (0, "ibv_reg_mr", "cuMemHostAlloc", True))
        self.assertEqual(rows["CUDA device"], (14, "ibv_reg_mr", "cuMemAlloc", False))
        self.assertEqual(rows["CUDA device, by dmabuf"], (0, "ibv_reg_dmabuf_mr", "cuMemAlloc", True))
        self.assertEqual(rows["CUDA VMM"], (14, "ibv_reg_mr", "cuMemMap", False))
        self.assertEqual(rows["CUDA VMM, by dmabuf"], (0, "ibv_reg_dmabuf_mr", "cuMemMap", True))
        self.assertEqual(rows["CUDA managed"], (0, "ibv_reg_mr", "cuMemAllocManaged", True))
        got = self.with_gpu(FAKE_CUDA="deaf")
        self.assertIn("the bytes that the processor reads are wrong", {k["kind"]: k for k in got["kinds"]}["malloc"]["gpu"]["note"])
        self.assertFalse(any(k["both"] for k in got["kinds"]))
        got = {k["kind"]: k["note"] for k in self.with_gpu(FAKE_CUDA="no-dmabuf,full")["kinds"]}
        self.assertEqual(got["CUDA device"], "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (CUDA 2)")
        got = {k["kind"]: k["note"] for k in self.with_gpu(FAKE_CUDA="no-dmabuf")["kinds"]}
        self.assertEqual(got["CUDA VMM, by dmabuf"], "cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (CUDA 801)")

    def test_probe_memory_with_a_driver_that_cannot_be_used(self):
        self.assertEqual(self.with_gpu("old")["gpu_why"], "no GPU: CUDA's driver is too old: it is for CUDA 9.1 and lacks "
                         "cuMemGetAllocationGranularity; install one for CUDA 10.2 or newer")
        for code, says in ((100, "CUDA_VISIBLE_DEVICES is \"7\""), (802, "start nvidia-fabricmanager"), (803, "restart this machine")):
            got = self.with_gpu(FAKE_CUDA=f"init={code}", CUDA_VISIBLE_DEVICES="7")
            self.assertIn(says, got["gpu_why"])
            self.assertTrue({k["kind"]: k for k in got["kinds"]}["malloc"]["registers"])

    def test_probe_queue(self):
        got = self.json("probe", "queue", "--count", "32")
        self.assertEqual(got["queue_pairs"], {"tried": 32, "made": 32, "errno": 0})
        self.assertEqual(got["domains"], {"tried": 32, "made": 32, "errno": 0})
        self.assertEqual([(d["asked"], d["send"]) for d in got["depths"][:3]], [(1, 1), (16, 16), (64, 64)])
        self.assertEqual(got["depths"][-1]["errno"], 22)
        for side in ("sends_past_depth", "receives_past_depth"):
            self.assertEqual(got[side], {"tried": True, "depth": 16, "taken": 16, "errno": 12, "past": False})


class Plan(Base):
    def test_the_known_table(self):
        """JACCL's use of regions as published: peers, depth, regions, how many of 100 are left."""
        plans = self.json("plan", "--peers", "2,3", "--depth", "4,5,6,8", WEFT_VERBS_LIBRARY="/nonexistent")["plans"]
        got = {(p["peers"], p["depth"]): (p["region_a_buffer"]["needed"], p["region_a_buffer"]["left"]) for p in plans}
        for key, value in {(2, 4): (64, 36), (2, 6): (96, 4), (2, 8): (128, -28), (3, 4): (96, 4), (3, 5): (120, -20)}.items():
            self.assertEqual(got[key], value)
        for p in plans:
            self.assertEqual(p["pool"], {"needed": 2, "left": 98, "fits": True})
            self.assertEqual(p["region_a_buffer"]["fits"], p["region_a_buffer"]["left"] >= 0)
        self.assertRegex(self.weft("plan", "--peers", "2", "--depth", "8"), r"\n +2 +8 +128 .* 128 +-28: too many +2 +98 +4 +6")

    def test_thousands_of_buffers(self):
        plan = self.json("plan", "--peers", "2", "--sizes", "512K", "--depth", "4096")["plans"][0]
        self.assertEqual((plan["buffers"], plan["bytes"]), (8192, 4 << 30))
        self.assertEqual(plan["pool"]["needed"], 5)

    def test_queue_pairs(self):
        def need(*args):
            return self.json("plan", *args)["plans"][0]["queue_pairs"]
        self.assertEqual(need("--peers", "2", "--lanes", "8")["needed"], 9)
        self.assertEqual(need("--peers", "2", "--lanes", "1")["needed"], 2)
        self.assertEqual(need("--peers", "3"), {"needed": 8, "left": 2, "fits": True})  # as weft does when nothing is set
        self.assertEqual(self.json("plan", "--peers", "3", WEFT_TB_LANES="32K:32")["plans"][0]["queue_pairs"]["needed"], 4)
        self.assertIn("WEFT_TB_LANES='x'", self.weft("plan", code=1, WEFT_TB_LANES="x"))
        self.assertEqual(need("--peers", "4", "--lanes", "8"), {"needed": 27, "left": -17, "fits": False})
        self.assertEqual(need("--peers", "3", "--device", "sv0")["needed"], 2)
        self.assertEqual(need("--peers", "3", "--device", "sv0", "--qps", "1")["left"], -1)

    def test_against_a_number_of_regions(self):
        got = self.json("plan", "--regions", "50", "--peers", "2", "--depth", "4")
        self.assertEqual(got["regions"], 50)
        self.assertEqual(got["plans"][0]["region_a_buffer"], {"needed": 64, "left": -14, "fits": False})
        self.assertEqual(got["plans"][0]["pool"], {"needed": 2, "left": 48, "fits": True})
        self.assertEqual(self.json("plan", "--device", "sv0", "--regions", "64", "--peers", "2", "--depth", "4")["plans"][0]["region_a_buffer"],
                         {"needed": 64, "left": 0, "fits": True})
        for wrong in ("0", "1,2", "4294967296", "x", ""):
            self.assertIn(f"--regions '{wrong}': expected a number from 1 to 4294967295\n", self.weft("plan", "--regions", wrong, code=2))

    def test_against_a_device(self):
        plan = self.json("plan", "--device", "sv0")
        self.assertEqual((plan["against"], plan["regions"], plan["queue_pairs"]), ("sv0", 65536, 16384))
        self.assertIn("no device mlx5_0", self.weft("plan", "--device", "mlx5_0", code=1))

    def test_wrong_usage(self):
        for args in (["--peers", "1"], ["--peers", "2,"], ["--peers", "2K"], ["--depth", ""], ["--sizes", "2G"], ["--lanes", "1,2"], ["--lanes", "9"],
                     ["--peers", ",".join("2" * 33)]):
            self.assertIn("expected", self.weft("plan", *args, code=2))


class Thunderbolt(Base):
    PROFILE, TOPOLOGY = "tb5", ("mesh", "2")

    def test_devices(self):
        device = self.json("devices")[0]
        self.assertEqual((device["device"], device["interface"], device["link"], device["transport"]),
                         ("rdma_en2", "en2", "Thunderbolt", "tb"))
        self.assertEqual(device["limits"]["queue_pairs"], {"total": 10, "used": None})
        self.assertEqual(device["limits"]["regions"]["total"], 100)

    def test_doctor(self):
        got = self.json("doctor", LD_LIBRARY_PATH=os.path.join(CUDA, "driver"))
        self.assertEqual({k: v for k, v in got.items() if k not in ("findings", "gpus")}, {"ok": True, "usable_devices": 1})
        self.assertEqual([(g["gpu"], g["direct"], g["why"]) for g in got["gpus"]],
                         [("cuda:0", False, "no RDMA device of this host reads and writes other nodes' memory (transport rc)")])
        self.softverbs("fault", "pull", "--fabric", "test", "0:rdma_en2")
        p = subprocess.run([WEFT, "doctor", "--json"], capture_output=True, text=True, env=self.env, timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertEqual([f["id"] for f in json.loads(p.stdout)["findings"] if f["stops"]], ["port-down"])
        self.softverbs("fault", "plug", "--fabric", "test", "0:rdma_en2")
        for verb, finding in (("alloc_pd", "no-domains"), ("create_qp", "no-queue-pairs")):
            self.softverbs("fault", "add", "--fabric", "test", "refuse", "--verb", verb, "--errno", "16")
            p = subprocess.run([WEFT, "doctor", "--json"], capture_output=True, text=True, env=self.env, timeout=LIMIT, check=False)
            self.assertEqual([f["id"] for f in json.loads(p.stdout)["findings"] if f["stops"]], [finding])
            self.softverbs("fault", "clear", "--fabric", "test")

    def test_probe_regions(self):
        got = self.json("probe", "regions", "--size", "64K")
        self.assertEqual((got["device"], got["regions"], got["errno"], got["region_bytes"]), ("rdma_en2", 100, 12, 65536))
        self.assertTrue(got["again"])
        self.assertIn("| rdma_en2 | 100 | 100 | 64 KiB |", self.weft("probe", "regions", "--size", "64K", "--markdown"))

    def test_probe_memory(self):
        kinds = {k["kind"]: k for k in self.json("probe", "memory")["kinds"]}
        self.assertTrue(kinds["memfd, as the pool"]["registers"] and kinds["posix_memalign, a page's start"]["registers"])
        if not OWN_MALLOC:
            self.assertEqual(kinds["malloc"]["errno"], 22)
            self.assertIn("| malloc | errno 22 |", self.weft("probe", "memory", "--markdown"))
            malloc = self.with_gpu()["kinds"][0]
            self.assertEqual((malloc["kind"], malloc["gpu"]["reaches"], malloc["both"]), ("malloc", True, False))

    def test_probe_queue(self):
        got = self.json("probe", "queue")
        self.assertEqual(got["queue_pairs"], {"tried": 12, "made": 10, "errno": 16})
        self.assertEqual(got["domains"], {"tried": 13, "made": 11, "errno": 12})
        self.assertIn({"asked": 256, "send": 1023, "receive": 1023, "errno": 0}, got["depths"])
        self.assertIn("cannot be reached", got["past_not_tried"])

    def test_probe_queue_between_hosts(self):
        """This profile accepts more frames than the depth and loses them without an error; the probe reports that."""
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "queue", "--listen", where, host="1")
        got = self.json("probe", "queue", "--peer", where)
        self.assertEqual((server.wait(LIMIT), server.stdout.read()), (0, ""))
        for side in ("sends_past_depth", "receives_past_depth"):
            self.assertEqual(got[side], {"tried": True, "depth": 1023, "taken": 1024, "errno": 0, "past": True})

    def test_probe_pool_needs_the_other_end_of_the_cable(self):
        self.assertIn("cannot be reached on this link", self.weft("probe", "pool", code=1))

    def test_probe_pool_between_hosts(self):
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "pool", "--listen", where, "--json", host="1")
        got = self.json("probe", "pool", "--peer", where, "--count", "200", "--size", "20K")
        out, err = server.communicate(timeout=LIMIT)
        self.assertEqual(server.returncode, 0, err)
        for one in (got, json.loads(out)):
            self.assertTrue(one["ok"])
            self.assertEqual([o["tried"] for o in one["operations"]], [True, True, False, False, False, False])
            self.assertEqual([o["good"] for o in one["operations"]][:2], [200, 200])

    def test_probe_pool_says_what_the_device_cannot(self):
        self.softverbs("fault", "add", "--fabric", "test", "corrupt", "--nth", "5")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "pool", "--listen", where, host="1")
        client = self.start("probe", "pool", "--peer", where, "--count", "8", "--size", "4K")
        out, err = client.communicate(timeout=LIMIT)
        server.communicate(timeout=LIMIT)
        self.assertEqual(client.returncode, 1, err)
        self.assertRegex(out, r"receive +0/8 .*not tried: send failed")
        self.assertRegex(out, r"be written +0/8 .*not tried: the device cannot")

    def test_probe_link_between_hosts(self):
        self.assertIn("use --listen and --peer", self.weft("probe", "link", code=1))
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        got = self.json("probe", "link", "--peer", where, "--size", "64K")
        self.assertEqual((server.wait(LIMIT), server.stdout.read()), (0, ""))
        for way in ("there", "back"):
            self.assertEqual([m["depth"] for m in got["measures"] if m["way"] == way], [1, 2, 4, 8, 16, 32, 64])
        self.assertEqual(sum(m["damaged"] for m in got["measures"]), 0)
        self.assertEqual(got["depth_unit_bytes"], 4096)

    def test_probe_link_whose_cable_is_pulled(self):
        """Both ends report at once which port is down, and propose no settings."""
        self.softverbs("fault", "add", "--fabric", "test", "delay", "--time", "5ms")  # so that it goes on for long
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        client = self.start("probe", "link", "--peer", where)
        time.sleep(2)  # some measures are there
        self.softverbs("fault", "pull", "--fabric", "test", "0:rdma_en2")
        pulled = time.monotonic()
        out, err = client.communicate(timeout=LIMIT)
        self.assertLess(time.monotonic() - pulled, patience(8))
        self.assertEqual(client.returncode, 1, out + err)
        self.assertIn("4 KiB", out)
        self.assertNotIn("WEFT_TB_LANES", out)
        self.assertIn("stopped: port 1 of rdma_en2 is down: check the cable", err)
        _, err = server.communicate(timeout=LIMIT)
        self.assertEqual(server.returncode, 1, err)
        self.assertIn("port 1 of rdma_en2 is down", err)

    def test_probe_link_of_another_kind(self):
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "pool", "--listen", where, host="1")
        self.weft("probe", "link", "--peer", where, code=1)
        self.assertEqual(server.wait(LIMIT), 1)
        self.assertIn("is not a `weft probe pool`", server.stderr.read())

    def interrupt(self, probe, number):
        self.until_data_moves()
        probe.send_signal(number)
        self.assertEqual(probe.wait(LIMIT), 128 + number)
        self.assertIn(f"stopped by signal {int(number)}", probe.stderr.read())

    def test_probe_link_interrupted(self):
        self.softverbs("fault", "add", "--fabric", "test", "delay", "--time", "20ms")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        client = self.start("probe", "link", "--peer", where)
        self.interrupt(client, signal.SIGTERM)
        self.assertEqual(server.wait(LIMIT), 1)

    def test_interrupted_it_leaves_nothing(self):
        # Slow, so that it lasts far longer than the pull takes to be noticed.
        self.softverbs("fault", "add", "--fabric", "test", "delay", "--time", "50ms")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "pool", "--listen", where, host="1")
        client = self.start("probe", "pool", "--peer", where, "--count", "1024", "--size", "512K")
        self.interrupt(client, signal.SIGINT)
        self.assertEqual(server.wait(LIMIT), 1)
        self.assertIn("closed the connection", server.stderr.read())


class Ring(Base):
    PROFILE, TOPOLOGY = "tb5", ("ring", "3")

    def test_probe_of_devices_that_no_cable_joins(self):
        """Each end chooses its first device, but the cable leads to the other device of the second host."""
        where = "unix:" + os.path.join(self.folder.name, "meet")
        for kind in ("link", "pool"):
            server = self.start("probe", kind, "--listen", where, host="1")
            said = self.weft("probe", kind, "--peer", where, code=1)
            self.assertIn("rdma_en2 here and rdma_en2 there may not be connected by a cable: use --device at both ends", said)
            self.assertIn("cannot be reached on this link", said)
            _, err = server.communicate(timeout=LIMIT)
            self.assertIn("use --device at both ends", err)
        server = self.start("probe", "link", "--listen", where, "--device", "rdma_en3", host="1")
        got = self.json("probe", "link", "--peer", where, "--device", "rdma_en2", "--size", "4K", "--count", "1")
        self.assertEqual((server.wait(LIMIT), got["harm"]), (0, None))


class Strict(Base):
    PROFILE, TOPOLOGY = "tb5-strict", ("mesh", "2")

    def test_probe_memory(self):
        kinds = {k["kind"]: k for k in self.json("probe", "memory")["kinds"]}
        if not OWN_MALLOC:
            self.assertEqual(kinds["posix_memalign, a page's start"]["errno"], 22)
        self.assertEqual(kinds["mmap, private"]["access"], "LOCAL_WRITE REMOTE_WRITE REMOTE_READ")

    def test_probe_queue_between_hosts(self):
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "queue", "--listen", where, host="1")
        got = self.json("probe", "queue", "--peer", where)
        self.assertEqual(server.wait(LIMIT), 0)
        for side in ("sends_past_depth", "receives_past_depth"):
            self.assertEqual(got[side], {"tried": True, "depth": 1023, "taken": 1020, "errno": 12, "past": False})

    def test_probe_link_counts_what_is_lost(self):
        """The probe goes on after losses: a late message never meets a receive of another size."""
        self.softverbs("fault", "add", "--fabric", "test", "drop", "--chance", "2%")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        got = self.json("probe", "link", "--peer", where, "--count", "16")
        self.assertEqual(server.wait(LIMIT), 0)
        for way in ("there", "back"):
            measures = [m for m in got["measures"] if m["way"] == way]
            self.assertEqual([m["message_bytes"] for m in measures], [4096 << i for i in range(8)])  # 16 of 1M are too much
            self.assertGreater(sum(m["lost"] for m in measures), 0)

    def test_probe_link_says_of_its_proposal_that_messages_were_lost(self):
        self.softverbs("fault", "add", "--fabric", "test", "drop", "--every", "10")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        out = self.weft("probe", "link", "--peer", where, "--size", "64K", "--count", "4")
        self.assertEqual(server.wait(LIMIT), 0)
        self.assertRegex(out, r"WEFT_TB_LANES=64K:4,64K:4 .*with these lanes [1-9]\d* of \d+ messages were lost: repair the link and probe again\n")

    def broken_link(self, *fault):
        """Runs both ends, and returns what they print."""
        self.softverbs("fault", "add", "--fabric", "test", *fault)
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        p = subprocess.run([WEFT, "probe", "link", "--peer", where, "--json"], capture_output=True, text=True, env=self.env,
                           timeout=LIMIT, check=False)
        _, err = server.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, server.returncode), (1, 1), p.stderr + err)
        self.assertIn("stopped: ", p.stderr)
        self.assertIn(json.loads(p.stdout)["harm"], p.stderr)
        return p.stderr, err

    def test_probe_link_whose_other_end_cannot_send(self):
        here, there = self.broken_link("refuse", "--verb", "post_send", "--errno", "5", "--host", "1")
        self.assertIn("the other end gave up sending, with messages of 4 KiB, 1 in flight", here)
        self.assertIn("the device refused a request to send", there)

    def test_probe_link_whose_other_end_cannot_receive(self):
        here, there = self.broken_link("refuse", "--verb", "post_recv", "--errno", "12", "--host", "1")
        self.assertIn("receives are refused, with messages of 4 KiB, 1 in flight", here)
        self.assertIn("the other end of the probe has given up", there)

    def test_probe_link_that_cannot_receive(self):
        here, there = self.broken_link("refuse", "--verb", "post_recv", "--errno", "12", "--host", "0")
        self.assertIn("the other end gave up sending, with messages of 4 KiB, 1 in flight", here)
        self.assertIn("the device refuses receives", there)

    def test_probe_link_whose_other_end_is_killed(self):
        """The other end dies while this one sends for long: this one ends before its limit for a send that does not complete."""
        self.softverbs("fault", "add", "--fabric", "test", "delay", "--time", "60s", "--host", "1")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "link", "--listen", where, host="1")
        leader = self.start("probe", "link", "--peer", where)
        self.until_data_moves()
        time.sleep(1)
        leader.kill()
        leader.communicate(timeout=LIMIT)
        _, err = server.communicate(timeout=LIMIT)
        self.assertEqual(server.returncode, 1, err)
        self.assertIn("the other end of the probe has closed the connection", err)
        self.softverbs("reboot", "--fabric", "test", "0")  # what was killed kept its protection domains

    def test_probe_link_with_damage_on_the_way_back(self):
        here, there = self.broken_link("corrupt", "--host", "1")
        self.assertIn("messages arrived damaged on their way back", here)
        self.assertIn("messages arrived damaged", there)

    def test_probe_pool_sends_again_what_is_lost(self):
        self.softverbs("fault", "add", "--fabric", "test", "drop", "--nth", "3")
        where = "unix:" + os.path.join(self.folder.name, "meet")
        server = self.start("probe", "pool", "--listen", where, host="1")
        got = self.json("probe", "pool", "--peer", where, "--count", "8", "--size", "4K")
        server.communicate(timeout=LIMIT)
        self.assertTrue(got["ok"])
        self.assertGreaterEqual(sum(o["lost"] for o in got["operations"]), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
