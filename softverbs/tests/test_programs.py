#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Debian's programs for libibverbs, unchanged, on softverbs: ibverbs-utils and perftest. Their results are checked.

Usage: test_programs.py PATH-OF-SOFTVERBS [TEST...]     WEFT_TEST_LONG=1: all combinations, some minutes
"""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

import processes
from processes import Base

LONG = bool(os.environ.get("WEFT_TEST_LONG"))
ALL_SIZES = [2 ** i for i in range(1, 24)]  # of perftest's -a


class Devices(Base):
    def one(self, *argv):
        program = self.start(0, *argv)
        self.wait(program)
        return program.text(program.out)

    def test_ibv_devices(self):
        out = self.one("ibv_devices")
        rows = [line.split() for line in out.splitlines()[2:]]
        self.assertEqual([r[0] for r in rows], ["sv0"], out)
        self.assertRegex(rows[0][1], r"^[0-9a-f]{16}$")
        self.assertNotEqual(rows[0][1], "0" * 16)

    def test_ibv_devinfo_list(self):
        self.assertIn("sv0", self.one("ibv_devinfo", "-l"))

    def test_ibv_devinfo(self):
        out = self.one("ibv_devinfo")
        self.assertRegex(out, r"hca_id:\s+sv0")
        self.assertRegex(out, r"state:\s+PORT_ACTIVE \(4\)")
        self.assertRegex(out, r"link_layer:\s+Ethernet")
        self.assertRegex(out, r"active_mtu:\s+4096")

    def test_ibv_devinfo_verbose(self):
        out = self.one("ibv_devinfo", "-v")
        for what in ("max_qp:", "max_mr_size:", "max_srq:", "atomic_cap:", "max_qp_rd_atom:", "hca_core_clock:",
                     "timestamp_mask:", "device_cap_flags:", "active_width:", "active_speed:", "phys_state:"):
            self.assertIn(what, out)
        self.assertRegex(out, r"GID\[\s*\d+\]:\s+fe80:")
        self.assertRegex(out, r"GID\[\s*\d+\]:\s+::ffff:")

    def test_every_host_has_its_own_device(self):
        seen = set()
        for host in range(8):
            program = self.start(host, "ibv_devices")
            self.wait(program)
            seen.add(program.text(program.out).split()[-1])
        self.assertEqual(len(seen), 8)


class Pingpongs(Base):
    """ibv_*_pingpong: the printed numbers of bytes and iterations are right, and with -c all bytes are right."""

    def run_it(self, kind, *options, hosts=(0, 1), size=None, iterations=1000, gid=1):
        size = size or {"ud": 2048}.get(kind, 4096)
        argv = [f"ibv_{kind}_pingpong", "-n", iterations, "-s", size, *options]
        argv += ["-g", gid] if gid is not None else []
        for out in self.pair(argv, argv, hosts):
            found = re.search(r"(\d+) bytes in ([\d.]+) seconds = ([\d.]+) Mbit/sec\n(\d+) iters in", out)
            self.assertTrue(found, self.told())
            self.assertEqual(int(found[1]), size * iterations * 2, self.told())
            self.assertEqual(int(found[4]), iterations, self.told())
            self.assertNotIn("invalid", out)
        for program in self.started:
            self.assertEqual(program.text(program.err), "", self.told())


class Pingpong(Pingpongs):
    """On a RoCE device; the option -g names the GID."""


PINGPONG = {  # name: options
    "plain": {},
    "validated": {"options": ("-c",)},
    "events": {"options": ("-e", "-c")},
    "gid_0": {"options": ("-c",), "gid": 0},
    "gid_0_events": {"options": ("-e",), "gid": 0},
    "one_host": {"options": ("-c",), "hosts": (3, 3)},
    "one_host_events": {"options": ("-e",), "hosts": (3, 3)},
    "small": {"options": ("-c",), "size": 64},
    "small_events": {"options": ("-e", "-c"), "size": 64},
    "short_queue": {"options": ("-c", "-r", "8")},
}
STREAM = {
    "large": {"options": ("-c",), "size": 1 << 20, "iterations": 100},
    "large_events": {"options": ("-e", "-c"), "size": 1 << 20, "iterations": 100},
    "odd": {"options": ("-c",), "size": 77777, "iterations": 300},
}


def pingpong(name, kind, case):
    def test(self):
        self.run_it(kind, *case.get("options", ()), **{k: v for k, v in case.items() if k != "options"})
    setattr(Pingpong, f"test_{kind}_{name}", test)


for _kind in ("rc", "uc", "ud", "srq"):
    for _name, _case in {**PINGPONG, **({} if _kind == "ud" else STREAM)}.items():
        if _kind == "srq" and _name == "short_queue":
            _case = {"options": ("-c", "-r", "40")} # for 16 queue pairs
        pingpong(_name, _kind, _case)
pingpong("new_post", "rc", {"options": ("-N", "-c")})
pingpong("new_post_events", "rc", {"options": ("-N", "-e")})
pingpong("timestamps", "rc", {"options": ("-t", "-c")})
pingpong("many_queue_pairs", "srq", {"options": ("-q", "64", "-c")})


INFINIBAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "infiniband.json")


class InfinibandPingpong(Pingpongs):
    """Addressed by LID, as these programs do without the option -g."""
    PROFILE = INFINIBAND

    def test_devinfo(self):
        program = self.start(2, "ibv_devinfo", "-v")
        self.wait(program)
        out = program.text(program.out)
        self.assertRegex(out, r"link_layer:\s+InfiniBand")
        self.assertRegex(out, r"sm_lid:\s+1\n")
        self.assertRegex(out, r"port_lid:\s+3\n")
        self.assertRegex(out, r"port_lmc:\s+0x00\n")
        guid = re.search(r"node_guid:\s+(\S+)", out)[1]
        self.assertRegex(out, r"GID\[\s*0\]:\s+fe80:0000:0000:0000:" + guid)
        self.assertNotIn("GID[  1]", out)


for _kind in ("rc", "uc", "ud", "srq"):
    for _name, _case in {"plain": {}, "validated": {"options": ("-c",)}, "events": {"options": ("-e", "-c")},
                         "one_host": {"options": ("-c",), "hosts": (3, 3)}}.items():
        def _one(self, kind=_kind, case=_case):
            self.run_it(kind, *case.get("options", ()), hosts=case.get("hosts", (0, 1)), gid=None)
        setattr(InfinibandPingpong, f"test_{_kind}_by_lid_{_name}", _one)
setattr(InfinibandPingpong, "test_rc_by_gid", lambda self: self.run_it("rc", "-c", gid=0))
setattr(InfinibandPingpong, "test_ud_by_gid", lambda self: self.run_it("ud", "-c", gid=0))


class Perftest(Base):
    """perftest's table: every size is there, with its iterations, and figures that can be.

    For each line of a table in microseconds or megabytes both sides first measure the processor's clock, 0.2 s and more of
    spinning: most of the time here. So times are asked for in cycles (-C) but in two tests a program, and tables of all
    sizes are few."""

    def rows(self, out):
        """The lines of the table: lists of numbers."""
        found = []
        for line in out.splitlines():
            if re.match(r"^ \d+ +\d+ +[\d.]", line):
                found.append([float(word) for word in line.split()])
        return found

    def run_it(self, program, *options, sizes, iterations, hosts=(0, 1), tries=3):
        argv = [program, "-F", "-n", iterations, *options]
        if program.endswith("_lat") and "-x" not in options:
            argv += ["-C"]
        if len(sizes) > 1:
            argv += ["-a"]
        elif not program.startswith("ib_atomic"):
            argv += ["-s", sizes[0]]
        outputs = self.pair(argv, argv, hosts)
        for started in self.started:
            for wrong in ("Failed", "failed", "Couldn't", "Unable", "error", "Completion with"):
                self.assertNotIn(wrong, started.text(started.err) + started.text(started.out), self.told())
        self.assertIn("ibv_wr* API     : " + ("ON" if self.NEW_POST else "OFF"), outputs[1])
        rows = self.rows(outputs[1])
        # perftest reckons with the processor's cycle counter, which it first compares with the clock. Where it was held up meanwhile,
        # or the whole machine was, it says that they do not agree and its figures are infinite, or all of them are nothing.
        unsure = "Correlation coefficient" in "".join(p.text(p.err) for p in self.started[-2:])
        nothing = program.endswith("_bw") and any(not any(row[2:5]) for row in rows)
        if (unsure or nothing) and tries > 1:
            return self.run_it(program, *options, sizes=sizes, iterations=iterations, hosts=hosts, tries=tries - 1)
        self.assertEqual([int(r[0]) for r in rows], list(sizes), self.told())
        for row in rows:
            self.assertGreaterEqual(int(row[1]), iterations, self.told())
            if program.endswith("_bw"):
                peak, average, rate = row[2:5]
                self.assertTrue(0 < average and 0 < rate and (peak == 0 or peak >= 0.98 * average), self.told())
                # MB is 2^20 here; both figures are rounded
                self.assertAlmostEqual(rate * 1e6 * row[0] / 2 ** 20, average, delta=0.05 * average + 0.02, msg=self.told())
            else:
                least, most, typical, average = row[2:6]
                self.assertTrue(0 < least <= typical <= most and least <= average <= most, self.told())


class OldPost(Perftest):
    """Posts by ibv_post_send: what perftest does on a device that it does not know."""
    NEW_POST = False


class NewPost(Perftest):
    """Posts by ibv_wr_*, as perftest does on devices whose part number it knows. So the profile is generic, but with the part number of a
    ConnectX-5."""
    NEW_POST = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        got = subprocess.run([processes.COMMAND, "profile", "generic"], capture_output=True, text=True, check=True)
        profile = json.loads(got.stdout)
        profile["name"] = "known"
        profile["device"].update(vendor_id=0x2c9, vendor_part=4119)
        cls.PROFILE = os.path.join(cls.folder.name, ".known.json")
        with open(cls.PROFILE, "w", encoding="utf-8") as f:
            json.dump(profile, f)


class InfinibandPerftest(Perftest):
    """By LID, without -x."""
    PROFILE = INFINIBAND
    NEW_POST = False


def perftest(classes, name, program, *options, sizes=(65536,), iterations=300, hosts=(0, 1)):
    def test(self):
        self.run_it(program, *options, sizes=sizes, iterations=iterations, hosts=hosts)
    for c in classes:
        assert not hasattr(c, "test_" + name), name
        setattr(c, "test_" + name, test)


BOTH, OLD, NEW = (OldPost, NewPost), (OldPost,), (NewPost,)
for _kind, _connections in (("send", ("RC", "UC", "UD")), ("write", ("RC", "UC")), ("read", ("RC",))):
    for _c in _connections:
        for _shape in ("bw", "lat"):
            _p, _n = f"ib_{_kind}_{_shape}", f"{_kind}_{_shape}_{_c.lower()}"
            _sizes = [s for s in ALL_SIZES if s <= 4096] if _c == "UD" else ALL_SIZES
            _one = 4096 if _c == "UD" else 65536
            # Of the tables of all sizes some, with one interface or the other; all of them when there is time.
            _all = {"send_bw_rc": OLD, "write_bw_uc": NEW, "read_lat_rc": NEW}.get(_n, ())
            perftest(BOTH if LONG else _all, _n + "_all_sizes", _p, "-c", _c, sizes=_sizes, iterations=20)
            perftest(BOTH, _n, _p, "-c", _c, "-x", "1", sizes=(_one,))
            perftest(OLD, _n + "_gid_0", _p, "-c", _c, "-x", "0", sizes=(_one,))
            perftest(NEW, _n + "_one_host", _p, "-c", _c, sizes=(_one,), hosts=(2, 2))
            perftest(BOTH if LONG else OLD, _n + "_small", _p, "-c", _c, sizes=(2,))
            if _kind != "write":  # that one polls memory, or has nobody at the other end to wake
                perftest(BOTH if _c == "RC" or LONG else OLD, _n + "_events", _p, "-c", _c, "-e", sizes=(_one,))
            if _kind != "read":
                perftest(BOTH, _n + "_inline", _p, "-c", _c, "-I", "64", sizes=(64,))
            if _kind == "send" and _c != "UC":  # perftest has no shared queue for UC
                perftest(OLD if _shape == "bw" else NEW, _n + "_srq", _p, "-c", _c, "--use-srq", sizes=(_one,))
            if _shape == "bw":
                perftest(BOTH if _c == "RC" or LONG else NEW, _n + "_queue_pairs", _p, "-c", _c, "-q", "4", sizes=(_one,))
                perftest(BOTH if _c == "RC" or LONG else OLD, _n + "_both_ways", _p, "-c", _c, "-b", sizes=(_one,))
                perftest(NEW, _n + "_both_ways_queue_pairs", _p, "-c", _c, "-b", "-q", "3", sizes=(_one,))
                perftest(BOTH if LONG else OLD, _n + "_lists", _p, "-c", _c, "-l", "16", "-q", "2", sizes=(_one,),
                         iterations=512)

for _shape in ("bw", "lat"):
    for _type, _classes in (("FETCH_AND_ADD", OLD), ("CMP_AND_SWAP", NEW)):
        _p, _n = f"ib_atomic_{_shape}", f"atomic_{_shape}_{_type.lower()}"
        perftest(BOTH, _n, _p, "-A", _type, sizes=(8,), iterations=1000)
        perftest(_classes, _n + "_events", _p, "-A", _type, "-e", sizes=(8,))
        perftest(_classes, _n + "_gid_0", _p, "-A", _type, "-x", "0", sizes=(8,))
        if _shape == "bw":
            perftest(_classes, _n + "_queue_pairs", _p, "-A", _type, "-q", "4", sizes=(8,))
            perftest(_classes, _n + "_both_ways", _p, "-A", _type, "-b", sizes=(8,))

for _name, _program, *_options in (("write", "ib_write_bw"), ("send", "ib_send_lat"), ("send_uc", "ib_send_bw", "-c", "UC"),
                                   ("send_ud", "ib_send_lat", "-c", "UD"), ("read", "ib_read_lat")):
    perftest([InfinibandPerftest], _name, _program, *_options, sizes=(2048,))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        processes.COMMAND = os.path.abspath(sys.argv.pop(1))
    missing = [p for p in ("ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw") if not shutil.which(p)]
    if missing:
        print("not installed:", ", ".join(missing), "(Debian: ibverbs-utils, perftest)")
        sys.exit(77)
    unittest.main(verbosity=2)
