#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/: medians, ratios, verdicts, the JSON and the drawing, on figures that were recorded. Nothing is timed."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "bench"))
sys.dont_write_bytecode = True
import rig
import suites

LATENCY = rig.Row("lat", "put 8 B", "us", "lower", 1.0)
RATE = rig.Row("rate", "put 1 MiB", "GB/s", "higher", 2.0)


class Recorded(rig.Side):
    """Returns recorded figures, one for each round; None is a failure."""

    def __init__(self, peer, figures, order, limit=False):
        self.peer, self.figures, self.order, self.limit, self.turn = peer, figures, order, limit, 0

    def measure(self, group, scale):
        self.order.append(self.peer)
        self.turn += 1
        figure = self.figures[self.turn - 1]
        if figure is None:
            raise rig.Missing("it did not work")
        return {"lat": figure}


class Recordings:
    NAME, TITLE = "recorded", "figures of <yesterday>"

    def __init__(self, sides):
        self.played = sides

    def rows(self, context):
        return [LATENCY]

    def groups(self, context):
        return ["all"]

    def sides(self, context):
        return self.played


def judged(row, **peers):
    samples = {(name, row.id): (f if isinstance(f, dict) else {"": f}) for name, f in peers.items()}
    names = [n for n in peers if n != "weft"]
    return {r["peer"]: r for r in rig.judge(row, samples, names, {"machine"})}


class Judging(unittest.TestCase):
    def test_median_ratio_and_spread(self):
        r = judged(LATENCY, weft=[0.3, 0.1, 0.2], other=[0.5, 0.4, 0.3])["other"]
        self.assertEqual((r["ours"], r["theirs"], r["rounds"]), (0.2, 0.4, 3))
        self.assertAlmostEqual(r["ratio"], 0.5)
        self.assertEqual(r["spread"]["ours"], [0.1, 0.3])
        self.assertAlmostEqual(r["spread"]["ratio"][0], 0.25)
        self.assertAlmostEqual(r["spread"]["ratio"][1], 0.2 / 0.3)

    def test_target_is_set_against_the_better_peer(self):
        r = judged(LATENCY, weft=[2.0], slow=[9.0], fast=[1.0])
        self.assertEqual((r["fast"]["target"], r["fast"]["reached"]), (1.0, False))
        self.assertEqual((r["slow"]["target"], r["slow"]["reached"]), (None, None))

    def test_higher_is_better(self):
        r = judged(RATE, weft=[10.0], slow=[1.0], fast=[5.0])
        self.assertIs(r["fast"]["reached"], True)
        self.assertEqual(r["fast"]["ratio"], 2.0)
        self.assertIs(judged(RATE, weft=[9.9], fast=[5.0])["fast"]["reached"], False)

    def test_the_machine_is_no_rival(self):
        r = judged(LATENCY, weft=[2.0], other=[3.0], machine=[1.0])
        self.assertIs(r["other"]["reached"], True)
        self.assertTrue(r["machine"]["limit"])
        self.assertIsNone(r["machine"]["reached"])

    def test_the_better_variant_counts(self):
        r = judged(LATENCY, weft=[2.0], other={"a": [1, 9, 9], "b": [5, 5, 5]})["other"]
        self.assertEqual((r["variant"], r["theirs"]), ("b", 5))
        r = judged(RATE, weft=[2.0], other={"a": [1, 9, 9], "b": [5, 5, 5]})["other"]
        self.assertEqual((r["variant"], r["theirs"]), ("a", 9))

    def test_ours_missing_is_no_ratio(self):
        r = judged(LATENCY, other=[3.0])["other"]
        self.assertEqual((r["ours"], r["ratio"], r["reached"]), (None, None, None))

    def test_only_the_named_rival_sets_the_target(self):
        row = rig.Row("lat", "pair", "ns", "lower", 1.0, against=("glibc",))
        r = judged(row, weft=[2.0], glibc=[3.0], mimalloc=[1.0])
        self.assertIs(r["glibc"]["reached"], True)
        self.assertIsNone(r["mimalloc"]["reached"])


class Rounds(unittest.TestCase):
    def report(self):
        order = []
        sides = [Recorded("weft", [1.0, 3.0, 2.0], order), Recorded("other", [4.0, 4.0, 8.0], order),
                 Recorded("broken", [1.0, None, 1.0], order)]
        absent = Recorded("absent", [], order)
        absent.missing = lambda: "it is not installed"
        unable = Recorded("unable", [], order)
        unable.prepare = self.cannot_start
        return rig.measure(Recordings([*sides, absent, unable]), None, 3, 1, lambda text: None)[0], order

    def cannot_start(self):
        raise rig.Missing("its server did not start")

    def test_ended_early(self):
        order = []

        def second_round(text):
            if text.startswith("round 2"):
                raise KeyboardInterrupt
        report, ended = rig.measure(Recordings([Recorded("weft", [1.0, 3.0], order)]), None, 2, 1, second_round)
        self.assertIsInstance(ended, KeyboardInterrupt)
        self.assertEqual([r["ours"] for r in report["rows"]], [1.0])

    def test_sides_take_turns(self):
        _, order = self.report()
        self.assertEqual(order, ["weft", "other", "broken", "broken", "other", "weft", "weft", "other"])

    def test_report(self):
        report, _ = self.report()
        rows = {r["peer"]: r for r in report["rows"]}
        self.assertEqual((rows["other"]["ours"], rows["other"]["theirs"], rows["other"]["ratio"]), (2.0, 4.0, 0.5))
        self.assertEqual([(m["peer"], m["why"]) for m in report["missing"]],
                         [("absent", "it is not installed"), ("unable", "its server did not start"), ("broken", "it did not work")])
        self.assertNotIn("absent", rows)
        for key in ("cpu", "cores", "memory_bytes", "kernel"):
            self.assertTrue(report["machine"][key], key)
        self.assertNotIn(os.uname().nodename, json.dumps(report["machine"]).split('"'))

    def test_table_names_what_is_missing(self):
        report, _ = self.report()
        text = rig.table(report)
        self.assertIn("missing: absent: all: it is not installed", text)
        self.assertRegex(text, r"put 8 B +us +2\.?0* +1\.*.*other +4")

    def test_written_and_drawn(self):
        report, _ = self.report()
        with tempfile.TemporaryDirectory() as folder:
            path = rig.write(report, folder)
            with open(path) as f:
                self.assertEqual(json.load(f), json.loads(json.dumps(report)))
            got = subprocess.run([sys.executable, os.path.join(TOP, "bench", "plot"), path], capture_output=True,
                                 text=True)
            self.assertEqual((got.returncode, got.stderr), (0, ""))
            drawn = xml.dom.minidom.parseString(got.stdout)
            self.assertGreaterEqual(len(drawn.getElementsByTagName("rect")), 2)
            self.assertIn("it is not installed", got.stdout)
            self.assertEqual(os.listdir(folder), ["recorded.json"])

    def test_plot_refuses_what_is_no_result(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write("{}")
            f.flush()
            got = subprocess.run([sys.executable, os.path.join(TOP, "bench", "plot"), f.name], capture_output=True,
                                 text=True)
            self.assertEqual(got.returncode, 1)
            self.assertIn("expected a file that bench/run wrote", got.stderr)


class Processes(unittest.TestCase):
    def test_failure_says_who_and_why(self):
        with self.assertRaisesRegex(rig.Missing, r"'sh' ended with 3: no such thing"):
            rig.run(["sh", "-c", "echo no such thing >&2; exit 3"])

    def test_a_server_that_cannot_start_says_why(self):
        """A program that cannot start, for example for lack of a library: the note has the loader's message, not only that no server came up."""
        def server(port):
            return rig.start(["sh", "-c", "echo 'error while loading shared libraries: libucp.so.0' >&2; exit 127"])
        with self.assertRaisesRegex(rig.Missing, r"the server 'sh' ended with 127: error while loading.*libucp\.so\.0"):
            rig.ask(server, lambda port: rig.start(["true"]), 5)

    def test_a_server_that_only_speaks_on_stdout_is_heard(self):
        with self.assertRaisesRegex(rig.Missing, r"ended with 1: no device"):
            rig.ask(lambda port: rig.start(["sh", "-c", "echo no device; exit 1"]), lambda port: rig.start(["true"]), 5)

    def test_a_server_that_never_listens_says_what_it_said(self):
        with self.assertRaisesRegex(rig.Missing, r"the server 'sh' did not listen within 0\.2 s: waiting for a device"):
            rig.ask(lambda port: rig.start(["sh", "-c", "echo waiting for a device >&2; sleep 60"]),
                    lambda port: rig.start(["true"]), 5, coming_up=0.2)

    def test_the_other_end_may_be_the_reason(self):
        dead = rig.start(["sh", "-c", "echo no memory >&2; exit 4"])
        dead.wait()
        with self.assertRaisesRegex(rig.Missing, r"ended with 2: connection refused; 'sh' ended with 4: no memory"):
            rig.together([rig.start(["sh", "-c", "echo connection refused >&2; exit 2"]), dead], 5)

    def test_late_ones_are_ended(self):
        p = rig.start(["sleep", "60"])
        with self.assertRaisesRegex(rig.Missing, "did not end within"):
            rig.together([p], 0.1)
        self.assertIsNotNone(p.poll())


    def test_nothing_is_left_of_a_group(self):
        """Also if the program that was started ends by itself and leaves another process running."""
        p = rig.start(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
        left = int(rig.together([p], 5)[0])
        state = None
        for _ in range(500):
            state = subprocess.run(["ps", "-o", "stat=", "-p", str(left)], capture_output=True, text=True).stdout.strip()
            if not state or state.startswith("Z"):
                return
            time.sleep(0.01)
        self.fail(f"process {left} is still there ({state})")


class Command(unittest.TestCase):
    def run_bench(self, *words):
        return subprocess.run([sys.executable, os.path.join(TOP, "bench", "run"), *words], capture_output=True, text=True)

    def test_list(self):
        got = self.run_bench("--list")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual([line.split()[0] for line in got.stdout.splitlines()], list(suites.NAMES))

    def test_unknown_name(self):
        got = self.run_bench("nonsense")
        self.assertEqual(got.returncode, 2)
        self.assertIn("no benchmark 'nonsense'", got.stderr)

    def test_every_suite_is_consistent(self):
        context = rig.Context("nowhere", True)
        for name in suites.NAMES:
            suite = suites.load(name)
            self.assertEqual(suite.NAME, name)
            ids = [r.id for r in suite.rows(context)]
            self.assertEqual(len(ids), len(set(ids)), name)
            self.assertEqual(suite.sides(context)[0].peer, rig.OURS)
            self.assertTrue(suite.sides(context)[0].missing(), "nothing is built there")


if __name__ == "__main__":
    unittest.main()
