#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft between two virtual machines without any RDMA device, over TCP (the transport ofi), started by ssh: weft run and weft map
--hostfile; a network that is slow and loses packets, one that goes away for a while, one that drops everything without a word; with IPv6
only; and through a tunnel of WireGuard.

Usage: test_network.py RUN WEFT PEER [TEST...]    (tests/vm/run; the command weft; multi_peer)
"""
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import over_ssh  # noqa: E402
import test_ssh  # noqa: E402
from over_ssh import LIMIT, LONG  # noqa: E402
from processes import patience, until  # noqa: E402

MODULES = "sch_netem,sch_ingress,cls_u32,act_gact,wireguard"
SLOW = ["root", "netem", "delay", "50ms", "loss", "1%", "rate", "10mbit"]


def here(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **{"stdin": subprocess.DEVNULL, **more}).stdout


def sent(interface):
    with open(f"/sys/class/net/{interface}/statistics/tx_bytes", encoding="ascii") as file:
        return int(file.read())


class Network(test_ssh.Ssh):
    """With the tests of test_ssh.py, which run here over TCP."""
    if not LONG:
        lines, jobs = 60_000, 1
        test_node_killed = test_interrupted = None  # test_ssh.py and test_death.c have them

    def well(self, process):
        out, err = process.communicate(timeout=2 * LIMIT)
        self.assertEqual(process.returncode, 0, out + err)
        for k in (0, 1):
            self.assertIn(f"[{k}] node {k} of 2: all is well\n", out)
        self.nothing_stays()
        return out, err

    def begin(self, times, end, **env):
        # On a busy host an emulated machine is so slow, with a tunnel above all, that nothing may get through for many seconds.
        return self.start("-t", "--", self.peer, str(times), end, **{"WEFT_RECONNECT": f"{patience(30):.0f}s", **env})

    def test_slow(self):
        """50 ms, 1 % of the packets lost, 10 Mb/s. Each node says once that nothing is encrypted."""
        here("tc", "qdisc", "add", "dev", "eth0", *SLOW)
        try:
            _, err = self.well(self.begin(2, "leave", WEFT_LOG="info", WEFT_LIVENESS=f"{patience(30):.0f}s"))
        finally:
            here("tc", "qdisc", "del", "dev", "eth0", "root")
        for k in (0, 1):
            said = [line for line in err.splitlines() if line.startswith(f"[{k}]") and "in the clear" in line]
            self.assertEqual(len(said), 1, err)
            self.assertIn(f" at address 10.77.0.{k + 1}:", said[0])

    def test_away(self):
        """The interface goes down for 1 and for 20 s, and the work goes on."""
        process = self.begin(40, "leave", WEFT_LIVENESS="90s", WEFT_RECONNECT="90s", WEFT_DEADLINE="200s")
        for seconds in (1, 20):
            before = sent("eth0")
            until("data flows", lambda: sent("eth0") > before + (64 << 10) or process.poll() is not None, LIMIT)
            self.assertIsNone(process.poll(), "it has ended before the interface went down")
            here("ip", "link", "set", "eth0", "down")
            time.sleep(seconds)
            here("ip", "link", "set", "eth0", "up")
        self.well(process)

    def test_dropped(self):
        """Packets from the other machine are dropped without an error, except those of ssh: its node is declared dead in bounded time."""
        process = self.begin(1, "cut", WEFT_LIVENESS=f"{patience(4):.0f}s")
        while process.stdout.readline() not in ("[1] cut here\n", ""):
            pass
        began = time.monotonic()
        here("tc", "qdisc", "add", "dev", "eth0", "ingress")
        try:
            for priority, match, action in (("1", ("sport", "22", "0xffff"), "pass"), ("2", ("src", "10.77.0.2"), "drop")):
                here("tc", "filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "ip", "prio", priority, "u32", "match", "ip",
                     *match, "action", action)
            said = process.stdout.readline()
            while said and "is dead after" not in said:
                said = process.stdout.readline()
        finally:
            here("tc", "qdisc", "del", "dev", "eth0", "ingress")
        _, err = process.communicate(timeout=LIMIT)
        self.assertIn("[0] node 0: node 1 is dead after", said, err)
        self.assertLess(time.monotonic() - began, patience(60))
        self.assertRegex(err, r"\[0\] .*node 1 .* is dead: ")
        self.nothing_stays()

    def test_six_only(self):
        addresses = "ip -6 addr add fd77::{0}/64 dev eth0 nodad; {1} ip addr del 10.77.0.{0}/24 dev eth0"
        self.assertEqual(self.far(f"({addresses.format(2, 'sleep 1;')}) >/dev/null 2>&1 &").returncode, 0)
        here("sh", "-c", addresses.format(1, ""))
        hosts, other = Network.hosts, Network.other
        Network.other = "root@fd77::2"
        Network.hosts = [{"ssh": "vm1", "ips": ["fd77::1"]}, {"ssh": Network.other, "ips": ["fd77::2"]}]
        try:
            until("sshd answers", lambda: self.far("true").returncode == 0, LIMIT)
            self.well(self.begin(2, "leave"))
            self.assertEqual(self.far("ip -4 addr show dev eth0").stdout, "")
        finally:
            self.far("ip addr add 10.77.0.2/24 dev eth0")
            here("ip", "addr", "add", "10.77.0.1/24", "dev", "eth0")
            Network.hosts, Network.other = hosts, other

    def test_wireguard(self):
        """What the nodes move goes through the tunnel that WEFT_OFI_INTERFACE names."""
        keys = [here("wg", "genkey").strip() for _ in (0, 1)]
        public = [here("wg", "pubkey", input=key + "\n", stdin=None).strip() for key in keys]
        make = """umask 077; echo {key} >/tmp/wg.key; ip link add wg0 type wireguard; ip addr add 10.99.0.{own}/24 dev wg0
            wg set wg0 private-key /tmp/wg.key listen-port 51820 peer {peer} allowed-ips 10.99.0.{other}/32 endpoint 10.77.0.{other}:51820
            rm /tmp/wg.key; ip link set wg0 up"""
        far = self.far(make.format(key=keys[1], own=2, peer=public[0], other=1))
        self.assertEqual((far.returncode, far.stderr), (0, ""))
        here("sh", "-ec", make.format(key=keys[0], own=1, peer=public[1], other=2))
        try:
            _, err = self.well(self.begin(20, "leave", WEFT_OFI_INTERFACE="wg0", WEFT_LOG="info"))
            self.assertIn(" at address 10.99.0.1:", err)
            self.assertGreater(sent("wg0"), 100_000)
        finally:
            here("ip", "link", "del", "wg0")
            self.far("ip link del wg0")


if __name__ == "__main__":
    if sys.argv[1] != "--inside" and not shutil.which("wg"):
        print("no wg: install wireguard-tools (tools/deps test)", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") else 77)
    over_ssh.main(__file__, ["--modules", MODULES], over_ssh.SSHD_CONFIG.replace("ListenAddress 10.77.0.2", "AddressFamily any"),
                  "vm2,fd77::2", 600, 900)
