#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The large users of libibverbs, unchanged, on softverbs: UCX, OpenMPI over UCX, and libfabric. What is not installed is skipped, with a
message.

Usage: test_ucx.py PATH-OF-SOFTVERBS [TEST...]
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

import processes
from processes import Base

here = os.path.dirname(os.path.abspath(__file__))


def needs(*programs):
    missing = [p for p in programs if not shutil.which(p)]
    return unittest.skipIf(missing, "not installed: " + ", ".join(missing))


class Ucx(Base):
    # UCX says on stderr what it makes of a device; only warnings and worse, as a failed run shows them.
    UCX = {"UCX_NET_DEVICES": "sv0:1", "UCX_LOG_LEVEL": "warn"}

    def perftest(self, *options, size=8, iterations=200, **env):
        """Runs ucx_perftest between hosts 0 and 1: it must succeed, with the number of iterations that was asked for."""
        argv = ["ucx_perftest", "-n", iterations, "-w", 10, "-s", size, *options]
        for out in self.pair(argv, argv, **self.UCX, **env):
            self.assertNotRegex(out, "ERROR|WARN|Assert", self.told())
        self.assertRegex(self.started[1].text(self.started[1].out), rf"Final:\s+{iterations}\s", self.told())


@needs("ucx_info")
class Devices(Ucx):
    def test_transports(self):
        program = self.start(3, "ucx_info", "-d", UCX_NET_DEVICES="sv0:1")
        self.wait(program)
        found = re.findall(r"Transport: (\S+)\n#\s+Device: sv0:1\n", program.text(program.out))
        self.assertEqual(sorted(found), ["rc_verbs", "ud_verbs"], self.told())


@needs("ucx_perftest")
class Perftest(Ucx):
    """UCP over one transport (rc_v is rc_verbs, with ud_verbs for the first words; rc_verbs alone cannot connect), and UCT."""


SIZES = (8, 4000, 100000)
for tls in ("rc_v", "ud_v"):
    for test in ("tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_fadd"):
        for bytes_ in SIZES if test.startswith("tag") else (8,):
            def one(self, tls=tls, test=test, bytes_=bytes_):
                self.perftest("-t", test, size=bytes_, UCX_TLS=f"{tls},self")
            setattr(Perftest, f"test_ucp_{tls}_{test}_{bytes_}", one)
    def one(self, tls=tls):
        """Sleeps while it waits: it arms its queues and sleeps without another poll, as it may with mlx5."""
        for _ in range(3):
            self.perftest("-t", "tag_lat", "-E", "sleep", size=64, UCX_TLS=f"{tls},self")
    setattr(Perftest, f"test_ucp_{tls}_asleep", one)
for transport, test, layout, bytes_ in (("rc_verbs", "put_lat", "short", 8), ("rc_verbs", "put_bw", "bcopy", 4000),
                                        ("rc_verbs", "put_bw", "zcopy", 100000), ("rc_verbs", "get", "bcopy", 4000),
                                        ("rc_verbs", "get", "zcopy", 100000), ("rc_verbs", "am_lat", "short", 8),
                                        ("rc_verbs", "am_bw", "bcopy", 4000), ("rc_verbs", "add_lat", "short", 8),
                                        ("rc_verbs", "fadd", "short", 8), ("rc_verbs", "cswap", "short", 8),
                                        ("ud_verbs", "am_lat", "short", 8), ("ud_verbs", "am_bw", "bcopy", 4000)):
    def one(self, transport=transport, test=test, layout=layout, bytes_=bytes_):
        self.perftest("-d", "sv0:1", "-x", transport, "-t", test, "-D", layout, size=bytes_)
    setattr(Perftest, f"test_uct_{transport}_{test}_{layout}", one)


@needs("ucx_perftest")
class Infiniband(Ucx):
    """By LID, which UCX does within a subnet of InfiniBand."""
    PROFILE = os.path.join(here, "..", "examples", "infiniband.json")

    def test_rc(self):
        self.perftest("-t", "tag_lat", size=4000, UCX_TLS="rc_v,self")

    def test_ud(self):
        self.perftest("-t", "tag_lat", size=4000, UCX_TLS="ud_v,self")


@needs("mpirun", "mpicc")
class Mpi(Ucx):
    """Two ranks of OpenMPI, each on a host of its own. UCX is told to use only the emulated device, so all data must go over it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = os.path.join(cls.folder.name, "exchange")
        subprocess.run(["mpicc", "-O1", "-o", cls.program, os.path.join(here, "exchange.c")], check=True, stdin=subprocess.DEVNULL)

    def ranks(self, tls):
        rank = 'exec "$0" run --fabric test --host "$OMPI_COMM_WORLD_RANK" -- "$1"'
        env = {**self.env, **self.UCX, "UCX_TLS": f"{tls},self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_plm_rsh_agent": "true", "OMPI_MCA_rmaps_base_oversubscribe": "1", "TMPDIR": "/tmp"}
        program = processes.Program(env, [
            "mpirun", "--timeout", str(round(processes.LIMIT)), "-n", "2", "--mca", "pml", "ucx", "--mca", "osc", "ucx",
            "--mca", "btl", "self", "sh", "-c", rank, processes.COMMAND, self.program])
        self.started.append(program)
        self.wait(program, limit=processes.LIMIT + 5)
        self.assertEqual(sorted(program.text(program.out).splitlines()),
                         ["rank 0 of 2: 0 wrong", "rank 1 of 2: 0 wrong"], self.told())

    def test_rc(self):
        self.ranks("rc_v")

    def test_ud(self):
        self.ranks("ud_v")


@needs("fi_pingpong")
class Libfabric(Base):
    """libfabric's reliable datagrams over unreliable ones. Its connected endpoints need the RDMA connection manager, which softverbs does
    not have."""

    def test_rxd(self):
        argv = ["fi_pingpong", "-p", "verbs;ofi_rxd", "-e", "rdm", "-d", "sv0-dgram", "-c", "-I", 20, "-S", "all"]
        for out in self.pair(argv, argv, port_option=("-B", "-P")):
            self.assertRegex(out, r"(?m)^1m\s+20\s+=20\s", self.told())


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        processes.COMMAND = os.path.abspath(sys.argv.pop(1))
    if not any(map(shutil.which, ("ucx_info", "ucx_perftest", "fi_pingpong"))):
        print("not installed: ucx_info, ucx_perftest, fi_pingpong (Debian: ucx-utils, libfabric-bin)")
        sys.exit(77)
    unittest.main(verbosity=2)
