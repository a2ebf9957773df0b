#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft map --gpu=host: the GPU versions of kernels print exactly what the kernels print on the processor, however the input is cut, and also
if a node dies or a GPU fails.

Usage: test_map_gpu.py PATH-OF-WEFT PATH-OF-GPU_FAILS [TEST...]
"""
import os
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
FAILS = os.path.abspath(sys.argv.pop(2)) if len(sys.argv) > 2 else "build/tests/multi/gpu_fails"
import test_map  # noqa: E402
from test_map import LIMIT, Map, environment, nodes_of, rng, run, seed, start, theirs, until  # noqa: E402

KERNELS = ("wc", "histogram", "xxh64", "grep:ab")


class Gpu(Map):
    def both(self, *args, gpu=("--gpu=host",), **kw):
        code, out, err = run(*args, **kw)
        self.assertEqual(code, 0, err)
        self.assertGreater(len(out), 0)
        said = self.check(out, *gpu, *args, **kw)
        self.assertEqual(said, "")  # no node has lost its GPU
        return out

    def test_as_on_the_processor(self):
        bytes_of_all_kinds = self.path("bytes", rng.randbytes(5_000_000))
        for kernel in KERNELS:
            for path in (Map.text, bytes_of_all_kinds):
                for block in ("70K", "1G"):
                    self.both("--kernel", kernel, "--block", block, path)
            if not kernel.startswith("grep"):
                self.both("--kernel", kernel, "--exact", "--block", "333333", "--nodes", "3", "--slots", "2", bytes_of_all_kinds)

    def test_any_input(self):
        """Streams, in the owner's pool and in the spool; several files, small and empty ones; files whose reported size is wrong."""
        for kernel in KERNELS:
            self.both("--kernel", kernel, "--block", "300K", "-", input=Map.bytes)
        self.both("--kernel", "grep:e", "--block", "1G", "--memory", "40M", "--nodes", "2", "--slots", "1", "-", input=Map.bytes * 5)
        self.both("--kernel", "grep:e", "--block", "1G", "--memory", "40M", "--nodes", "2", "--slots", "1", Map.text)
        small = [self.path(f"small{n}", Map.bytes[n:2 * n]) for n in (0, 1, 63, 64, 65, 4000)]
        for kernel in KERNELS:
            self.both("--kernel", kernel, "--block", "1000", Map.text, *small, Map.text)
        self.check(b"%7d %7d %7d\n" % (0, 0, 0), "--gpu=host", "--kernel", "wc", small[0])
        if os.path.exists("/sys/class/net/lo/mtu"):
            self.both("--kernel", "wc", "/sys/class/net/lo/mtu")

    @unittest.skipUnless(sys.platform == "linux", "softverbs is for Linux")
    def test_nodes_on_hosts_of_their_own(self):
        for kernel in ("wc", "grep:e"):
            self.both("--kernel", kernel, "--block", "100K", Map.text, gpu=("--softverbs", "switch:3", "--gpu=host"))

    def test_a_node_killed(self):
        expected = run("--kernel", "grep:e", Map.text)[1]
        p = start("--nodes", "4", "--block", "16K", "--gpu=host", "--kernel", "grep:e", Map.text)
        n = until("the nodes run", lambda: nodes_of(p.pid) or p.poll() is not None)
        if isinstance(n, list):
            os.kill(n[0], signal.SIGKILL)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 0, err)
        self.assertTrue(out == expected)

    def test_an_input_that_is_cut_short(self):
        path = self.path("short", Map.bytes)
        p = start("--gpu=host", "--kernel", "wc", "--nodes", "2", "--block", "100K", "--retries", "0", "-", path, stdin=subprocess.PIPE)
        p.stdin.write(b"wait\n")
        p.stdin.flush()
        until("the nodes run", lambda: nodes_of(p.pid))
        os.truncate(path, 1_000_000)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"truncated", err)
        self.assertNotIn(b"on the processor", err)

    def fails(self, where, kernel):
        p = subprocess.run([FAILS, where, kernel, Map.text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), timeout=LIMIT)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertTrue(p.stdout == run("--kernel", kernel, "--block", "100000", Map.text)[1])
        return p.stderr.decode()

    def test_a_gpu_that_fails(self):
        """A GPU fails: its node runs the pieces on the processor and reports that once; no output is lost or printed twice."""
        say = "weft map: node {} runs its pieces on the processor: {}\n".format
        for kernel in ("histogram", "grep:e"):
            err = self.fails("open", kernel)
            self.assertEqual(sorted(err.splitlines(True)), [say(n, "another process uses it") for n in (1, 2)])
        for where, nodes, why in (("pass", (0, 1, 2), "it is full"), ("trap", (0, 1, 2), "a kernel has trapped"), ("one", (1, 2), "a kernel has trapped")):
            lines = self.fails(where, "wc" if where == "pass" else "grep:e").splitlines(True)
            self.assertEqual(len(lines), len(set(lines)), lines)
            self.assertEqual(set(lines) - {say(n, why) for n in nodes}, set())
            self.assertGreater(len(lines), 0)  # at least one node has done three pieces

    def test_no_gpu(self):
        """Without a usable GPU the error names the reason and the remedy. A build without nvcc reports first that it has no GPU code."""
        for option in ("--gpu", "--gpu=0", "--gpu=cuda:0"):
            code, out, err = run(option, "--kernel", "wc", Map.text, env=environment(CUDA_VISIBLE_DEVICES=""))
            self.assertEqual((code, out), (1, b""), err)
            self.assertRegex(err, r"^weft map: --gpu: (there is no GPU that can be used: .+|this weft has no code for GPUs: build it .+); "
                                  r"--gpu=host runs the same kernel on the processor\n$")
        self.assertIn(b"piece\t", subprocess.run([test_map.WEFT, "map", "--gpu", "--dry-run", "--kernel", "wc", Map.text],
                                                 stdout=subprocess.PIPE, check=True).stdout)

    def test_bad_options(self):
        for says, args in (("runs kernels, not commands", ["--gpu", Map.text, "--", "cat"]),
                           ("runs kernels, not commands", ["--gpu=host", Map.text, "--", "cat"]),
                           ("expected the number of a GPU", ["--gpu=x", "--kernel", "wc", Map.text]),
                           ("expected the number of a GPU", ["--gpu=cuda:x", "--kernel", "wc", Map.text]),
                           ("expected the number of a GPU", ["--gpu=64", "--kernel", "wc", Map.text]),
                           ("expected the number of a GPU", ["--gpu=", "--kernel", "wc", Map.text]),
                           ("there is no kernel", ["--gpu=host", "--kernel", "x", Map.text]),
                           ("needs an argument", ["--gpu=host", "--kernel", "grep", Map.text])):
            code, out, err = run(*args)
            self.assertEqual((code, out), (2, b""), err)
            self.assertIn(says, err)
            self.assertTrue(err.endswith("See `weft map --help`.\n"), err)


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(map(Gpu, (n for n in sorted(vars(Gpu)) if n.startswith("test_"))))


if __name__ == "__main__":
    sys.stderr.write(f"seed {seed} (WEFT_TEST_SEED)\n")
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
