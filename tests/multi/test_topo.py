#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft topo: the routes that it finds, all output formats, how it fails, and that it leaves no processes or files.

Usage: test_topo.py PATH-OF-WEFT [TEST...]
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ET

sys.dont_write_bytecode = True
from processes import clean_env, patience, until  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
SOFTVERBS = os.path.join(os.path.dirname(WEFT), "../../softverbs/cli/softverbs")
LIMIT = patience(120)  # seconds until something that should have ended is called a failure
# On a busy machine a node may be silent for long, and must not be declared dead for that.
ENV = clean_env(WEFT_LIVENESS="30s")


def topo(*args, code=0, **more):
    p = subprocess.run([WEFT, "topo", *args], capture_output=True, text=True, env={**ENV, **more}, timeout=LIMIT, check=False)
    if p.returncode != code:
        raise AssertionError(f"weft topo {' '.join(args)}: {p.returncode}\n{p.stdout}\n{p.stderr}")
    return p.stdout if code == 0 else p.stderr


class Topo(unittest.TestCase):
    def test_a_ring_of_cables(self):
        """Neighbours are reached directly, the opposite node through one of them. Devices without RC use tb without a setting."""
        got = json.loads(topo("--softverbs", "ring:4:tb5-strict", "--time", "2ms", "--json"))
        self.assertEqual([n["node"] for n in got["nodes"]], [0, 1, 2, 3])
        for n in got["nodes"]:
            self.assertEqual([(d["link"], d["usable"]) for d in n["devices"]], [("Thunderbolt", True)] * 2)
        self.assertEqual([(l["from"], l["to"]) for l in got["links"]], [(a, b) for a in range(4) for b in range(4) if a != b])
        for l in got["links"]:
            opposite = (l["to"] - l["from"]) % 4 == 2
            self.assertEqual((l["state"], l["transport"], l["direct"], l["cables"]), ("up", "tb", not opposite, not opposite), l)
            self.assertIn(l["via"], [(l["from"] + 1) % 4, (l["from"] - 1) % 4] if opposite else [l["to"]])
            self.assertRegex(l["devices"], r"^rdma_en[23]$")
            self.assertGreater(l["round_trip_ns"], 0)
            self.assertGreater(l["bytes_per_second"], 0)
            self.assertGreaterEqual(l["bulk_sent_bytes"], 0 if opposite else 8 << 20)
            self.assertGreater(l["frames_sent"], 0)

    def test_a_profile_of_ones_own(self):
        """The devices' properties decide on the transport, not the profile's name."""
        profile = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles", "tb5-forgets.json")
        got = json.loads(topo("--softverbs", "mesh:2:" + profile, "--time", "1ms", "--json"))
        self.assertEqual([l["transport"] for l in got["links"]], ["tb"] * 2)

    def test_nothing_reaches(self):
        """The error has the reasons of all transports that were tried."""
        err = topo("-n", "2", code=1, WEFT_TRANSPORT="rdma", WEFT_VERBS_LIBRARY="/nonexistent", WEFT_JOIN_TIMEOUT="20s")
        self.assertIn("this host cannot reach node", err)
        self.assertEqual({line.count("cannot be loaded") for line in err.splitlines()} - {0}, {1}, err)

    def test_forms(self):
        lines = topo("--softverbs", "mesh:2", "--time", "1ms").splitlines()
        self.assertRegex(lines[1], r"^ *0  \S+ +256 MiB  rdma_en2$")
        self.assertRegex(lines[5], r"^ *0 +1  up +tb +direct +rdma_en2 +[\d.]+ [mu]s +[\d.]+ [GM]B/s +\d+ +\d+$")
        self.assertEqual(len(lines), 7)
        svg = ET.fromstring(topo("--softverbs", "ring:4", "--time", "1ms", "--svg"))
        drawn = [e.get("class") for e in svg if e.tag.endswith("line")]
        self.assertEqual(sorted(drawn), ["direct"] * 4 + ["far"] * 2)
        dot = topo("--softverbs", "ring:4:tb5", "--time", "1ms", "--dot")
        self.assertEqual(len(re.findall(r"^    n\d -- n\d ", dot, re.M)), 6)
        self.assertEqual(dot.count("style=dashed"), 2)
        if shutil.which("dot"):
            p = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, timeout=LIMIT, check=False)
            self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_other_transports(self):
        got = json.loads(topo("-n", "3", "--time", "1ms", "--json", WEFT_POOL="32M"))
        self.assertEqual({(l["transport"], l["via"] == l["to"], l["devices"]) for l in got["links"]}, {("shm", True, None)})
        self.assertEqual({n["pool_bytes"] for n in got["nodes"]}, {32 << 20})
        got = json.loads(topo("-n", "2", "--softverbs", "switch:3", "--time", "1ms", "--json"))
        self.assertEqual([(l["transport"], l["state"], l["devices"]) for l in got["links"]], [("rc", "up", "sv0")] * 2)

    def test_over_a_network(self):
        """The output names libfabric's provider and the peer's address. There is no matrix without RDMA devices. If there are devices, the
        output says that they are not used."""
        got = json.loads(topo("-n", "2", "--time", "1ms", "--json", WEFT_TRANSPORT="ofi"))
        self.assertEqual([(l["transport"], l["state"]) for l in got["links"]], [("ofi", "up")] * 2)
        for l in got["links"]:
            self.assertRegex(l["devices"], r"^\S+ 127\.0\.0\.1:\d+$")
            self.assertEqual(l["devices"], got["nodes"][l["to"]]["network"])  # the peer's own
        self.assertIn("no RDMA device connects", topo("-n", "2", "--matrix", code=1, WEFT_TRANSPORT="ofi"))
        p = subprocess.run([WEFT, "topo", "--softverbs", "mesh:2", "--time", "1ms"], capture_output=True, text=True,
                           env={**ENV, "WEFT_TRANSPORT": "ofi"}, timeout=LIMIT, check=True)
        self.assertIn("1 pair of nodes (the first: 0 and 1) use libfabric (ofi), although both have RDMA devices that weft can use (rdma_en2; "
                      "rdma_en2)", p.stderr)

    def test_matrix(self):
        """MLX's hostfile: two nodes with a cable between them name the two ends of it; and weft can use the hostfile."""
        def printed(*args):
            p = subprocess.run([WEFT, "topo", "--matrix", *args], capture_output=True, text=True, env=ENV, timeout=LIMIT, check=False)
            self.assertEqual(p.returncode, 0, p.stderr)
            return json.loads(p.stdout), p.stderr

        with tempfile.TemporaryDirectory() as where:
            def written(name, what):
                with open(os.path.join(where, name), "w", encoding="utf-8") as f:
                    json.dump(what, f)
                return f.name

            a, b, c = "rdma_en2", "rdma_en3", "rdma_en4"
            for topology, rows in (("mesh:4", [[None, a, b, c], [a, None, c, b], [b, c, None, a], [c, b, a, None]]),
                                   ("chain:3:tb5-strict", [[None, a, None], [a, None, b], [None, a, None]]),
                                   ("switch:3", [[None, "sv0", "sv0"], ["sv0", None, "sv0"], ["sv0", "sv0", None]])):
                hosts, err = printed("--softverbs", topology)
                self.assertEqual((err, [h["rdma"] for h in hosts]), ("", rows), topology)
                self.assertEqual({(h["ssh"], *h["ips"]) for h in hosts}, {(os.uname().nodename, "127.0.0.1")})
                self.assertEqual({tuple(h) for h in hosts}, {("ssh", "ips", "rdma")})
                path = written("found.json", hosts)
                self.assertEqual(printed("--softverbs", topology, "--hostfile", path), (hosts, ""))
                kind, *profile = topology.rsplit(":", 1) if topology.count(":") > 1 else (topology, "generic" if "switch" in topology else "tb5")
                planned = subprocess.run([SOFTVERBS, "topo", "--matrix", "--profile", profile[0], *kind.split(":")], capture_output=True,
                                         text=True, env=ENV, timeout=LIMIT, check=True).stdout
                self.assertEqual([h["rdma"] for h in json.loads(planned)], rows)
                planned = json.loads(planned)
                self.assertEqual(printed("--softverbs", topology, "--hostfile", written("planned.json", planned)), (planned, ""))
            # The hosts' entries of the input hostfile are kept.
            said = [{"ssh": "root@localhost", "ips": ["127.0.0.1", "::1"]}, {"ssh": "127.0.0.1"}]
            hosts, _ = printed("--softverbs", "mesh:2", "--hostfile", written("said.json", said))
            self.assertEqual(hosts, [{**said[0], "rdma": [None, a]}, {**said[1], "ips": ["127.0.0.1"], "rdma": [a, None]}])
            # Two cables that cross: the first of one end leads to the last of the other.
            crossed = {"hosts": [{"name": n, "devices": [{"interface": "en2", "ipv4": f"169.254.{1 + i}.{1 + i}"},
                                                         {"interface": "en3", "ipv4": f"169.254.{2 - i}.{1 + i}"}]}
                                 for i, n in enumerate(("left", "right"))],
                       "cables": [{"from": "left/en2", "to": "right/en3"}, {"from": "left/en3", "to": "right/en2"}]}
            lab = written("crossed.json", crossed)
            hosts, err = printed("--softverbs", lab)
            self.assertIn("several devices connect the nodes of 1 pair, first nodes 0 (rdma_en", err)
            self.assertIn([h["rdma"] for h in hosts], ([[None, a], [b, None]], [[None, b], [a, None]]))
            self.assertEqual(printed("--softverbs", lab, "--hostfile", written("one.json", hosts)), (hosts, ""))

    def test_no_matrix(self):
        """If a node is missing, no matrix is printed, because an incomplete one would mislead the program that reads it."""
        for args, more in ((["-n", "2"], {}), (["--softverbs", "mesh:2"], {"WEFT_TRANSPORT": "shm"})):
            self.assertIn("no RDMA device connects", topo(*args, "--matrix", code=1, **more))
        with open("/dev/full", "w", encoding="utf-8") as full:
            p = subprocess.run([WEFT, "topo", "--softverbs", "mesh:2", "--matrix"], stdout=full, stderr=subprocess.PIPE, env=ENV,
                               timeout=LIMIT, check=False)
        self.assertEqual(p.returncode, 1)

    def test_a_hostfile(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump({"weft": 1, "coord": "unix:" + f.name + ".meet", "settings": {"pool": "32M"}, "hosts": [{"rdma": [None], "slots": 2}]}, f)
            f.flush()
            for args, more in (["--hostfile", f.name], {}), ([], {"WEFT_HOSTFILE": f.name}):
                got = json.loads(topo(*args, "--time", "1ms", "--json", **more))
                self.assertEqual([l["state"] for l in got["links"]], ["up"] * 2)

    def test_settings_reach_the_nodes(self):
        """Lanes other than the default; and an error with the reason for lanes that the devices refuse."""
        got = json.loads(topo("--softverbs", "mesh:2:tb5-strict", "--time", "1ms", "--json", WEFT_TB_LANES="64K:8", WEFT_TB_CHECK="frames"))
        self.assertEqual([l["state"] for l in got["links"]], ["up"] * 2)
        self.assertGreaterEqual(got["links"][0]["bulk_sent_bytes"], 8 << 20)
        self.assertIn("WEFT_TB_LANES='64K'", topo("--softverbs", "mesh:2:tb5", code=1, WEFT_TB_LANES="64K"))

    def started(self):
        """Starts a long measurement and waits for its three nodes. Returns the launcher and the nodes' process IDs."""
        # pylint: disable=consider-using-with
        p = subprocess.Popen([WEFT, "topo", "--softverbs", "mesh:3:tb5", "--time", "1m"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env={**ENV, "WEFT_JOIN_TIMEOUT": "10s"})
        self.addCleanup(p.__exit__, None, None, None)
        self.addCleanup(p.kill)

        def there():
            """The nodes, by number, when all have been started."""
            found = {}
            with open(f"/proc/{p.pid}/task/{p.pid}/children", encoding="utf-8") as f:
                for pid in f.read().split():
                    try:
                        with open(f"/proc/{pid}/environ", "rb") as e:
                            rank = [v for v in e.read().split(b"\0") if v.startswith(b"WEFT_RANK=")]
                        with open(f"/proc/{pid}/comm", encoding="utf-8") as c:
                            if rank and c.read() == "weft\n":
                                found[int(rank[0][10:])] = int(pid)
                    except OSError:
                        pass
            return found if len(found) == 3 else None

        until("the nodes are there", there, LIMIT)
        return p, there()

    def test_interrupted(self):
        p, _ = self.started()
        p.terminate()  # SIGTERM, because nohup or a background shell may have set other signals to be ignored
        out, _ = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, out), (128 + signal.SIGTERM, ""))

    def test_a_cable_pulled(self):
        """The node in the middle, over which the only route leads, dies: this is reported soon, and the known results are printed."""
        survives = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles", "tb5-stalls.json")
        # pylint: disable=consider-using-with
        p = subprocess.Popen([WEFT, "topo", "--softverbs", "mesh:2:" + survives, "--time", "10s", "--json"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env={**ENV, "WEFT_DEADLINE": "10s"})  # it waits so long when it leaves
        self.addCleanup(p.__exit__, None, None, None)
        self.addCleanup(p.kill)

        def fabric():
            with open(f"/proc/{p.pid}/task/{p.pid}/children", encoding="utf-8") as f:
                pids = f.read().split()
            for pid in pids:
                try:
                    with open(f"/proc/{pid}/environ", "rb") as e, open(f"/proc/{pid}/comm", encoding="utf-8") as c:
                        where = [v[14:].decode() for v in e.read().split(b"\0") if v.startswith(b"SOFTVERBS_DIR=")]
                        if where and c.read() == "weft\n":
                            return where[0]
                except OSError:  # it has ended
                    pass
            return None

        until("the nodes are there", fabric, LIMIT)
        env = {**ENV, "SOFTVERBS_DIR": fabric()}

        def measuring():
            out = subprocess.run([SOFTVERBS, "ls", "--fabric", "weft", "--json"], env=env, capture_output=True, text=True, check=False)
            return out.returncode == 0 and json.loads(out.stdout)[0]["devices"][0]["sent"] > 1000

        until("they measure", measuring, LIMIT)
        subprocess.run([SOFTVERBS, "fault", "pull", "--fabric", "weft", "0:rdma_en2"], env=env, check=True, capture_output=True)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 1, err)
        self.assertIn("no route leads to node 1: its cables are unplugged", err)
        got = {(l["from"], l["to"]): l for l in json.loads(out)["links"]}
        self.assertEqual((got[0, 1]["state"], got[1, 0]["why"]), ("failed", "node 1 has not reported"))
        self.assertIn("no route leads", got[0, 1]["why"])

    def test_interrupted_at_once(self):
        """The launcher is killed at any moment, also while the nodes join: the nodes end by themselves and print nothing."""
        for sig in (signal.SIGINT, signal.SIGTERM):
            for moment in range(2, 42, 2):
                with self.subTest(signal=sig, moment=moment):
                    # pylint: disable=consider-using-with,subprocess-popen-preexec-fn
                    p = subprocess.Popen([WEFT, "topo", "--softverbs", "ring:4:tb5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, env=ENV, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
                    time.sleep(moment / 1000)
                    p.send_signal(sig)
                    out, err = p.communicate(timeout=LIMIT)
                    self.assertIn(p.returncode, (-sig, 128 + sig), err)
                    self.assertEqual((out, err), ("", ""))

    def test_a_node_that_dies(self):
        """A node dies while the nodes join, while they exchange addresses, or while they measure."""
        for moment in range(0, 300, 20):
            with self.subTest(moment=moment):
                p, nodes = self.started()
                time.sleep(moment / 1000)
                os.kill(nodes[2], signal.SIGKILL)
                _, err = p.communicate(timeout=LIMIT)
                self.assertEqual(p.returncode, 1, err)
                self.assertIn("weft topo: ", err)

    def test_wrong_usage(self):
        for args, says in (([], "the cluster is missing"), (["-n", "1"], "from 2 to 256"), (["-n", "x"], "from 2 to 256"),
                           (["-n", "2", "--json", "--svg"], "exclude each other"),
                           (["-n", "2", "--matrix", "--json"], "exclude each other"), (["-n", "2", "--time", "0"], "from 1ms to 1m"),
                           (["-n", "2", "now"], "unexpected argument 'now'"), (["--softverbs", "star:3"], "expected switch:N"),
                           (["--softverbs", "switch:1"], "1 node"), (["--as-node"], "is for weft's own use")):
            self.assertIn(says, topo(*args, code=2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
