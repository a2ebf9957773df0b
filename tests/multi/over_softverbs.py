#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test of several nodes over RDMA: every node on a host of its own of a softverbs fabric, made for the test and
removed after it.

Usage: over_softverbs.py SOFTVERBS-COMMAND VERBS-LIBRARY PROFILE[,TOPOLOGY[,TRANSPORT]] TEST...

TOPOLOGY is one that softverbs has built in, written with a colon ("mesh:4"), or one of topology.py ("circle:9:1:2", "twin:2:1"); the default
is a switch of 64 hosts. TRANSPORT is the value of WEFT_TRANSPORT; the default is rc.
"""
import os
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from processes import patience  # noqa: E402

softverbs, library, what, *test = sys.argv[1:]


def end(number, _):
    signal.signal(number, signal.SIG_IGN)  # another one must not interrupt the removal of the fabric
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, end)  # when the time is over
profile, topology, transport = (what.split(",") + ["", ""])[:3]
# Each step takes a few system calls, and on two processors half of the nodes wait for a processor: do fewer steps.
os.environ.setdefault("TEST_DIVIDE", "5")
# Each node counts as a host of its own. On a busy machine a node may be silent for long and must not be declared dead for that. Tests of
# WEFT_LIVENESS set their own value.
os.environ.setdefault("WEFT_LIVENESS", f"{patience(30):.0f}s")
with tempfile.TemporaryDirectory(prefix="weft-rc-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as tmp:
    env = dict(os.environ, SOFTVERBS_DIR=tmp, SOFTVERBS_FABRIC="test", WEFT_TRANSPORT=transport or "rc", WEFT_VERBS_LIBRARY=library,
               SOFTVERBS_COMMAND=softverbs)
    wanted = (topology or "switch:64").split(":")
    if wanted[0] in ("circle", "random", "twin", "rails", "uneven", "crossed"):
        drawn = subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), "topology.py"), *wanted],
                               stdout=subprocess.PIPE, check=True).stdout
        wanted = [os.path.join(tmp, "topology.json")]
        with open(wanted[0], "wb") as file:
            file.write(drawn)
    made = [softverbs, "up", "--fabric", "test", "--profile", profile, *wanted]
    subprocess.run(made, env=env, check=True)
    status = subprocess.run(test, env=env).returncode
    down = subprocess.run([softverbs, "down", "--fabric", "test"], env=env).returncode
    left = [name for name in os.listdir(tmp) if name != "topology.json"]
if down or left:
    print(f"over_softverbs: something is still on the fabric: down ended with {down}, left {left}", file=sys.stderr)
sys.exit(status if status else 1 if down or left else 0)
