#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The code for CUDA GPUs as clang compiles it, without CUDA's headers: weft's own kernels, and kernels with every call of weft/device.cuh.
Where ptxas is, it assembles the result. Nothing is run.

Usage: test_clang_cuda.py SOURCE-ROOT PTXAS|- CLANG OPTION...
"""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT, PTXAS, COMMAND = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]


class Clang(unittest.TestCase):
    def entries(self, source):
        """The kernels of a source file; checks that ptxas takes them."""
        with tempfile.TemporaryDirectory() as folder:
            ptx = os.path.join(folder, "kernels.ptx")
            p = subprocess.run([*COMMAND, "-O1", "-Wall", "-Wextra", "-Werror", "-DWEFT_WC_PRINTABLE=1", "-I", os.path.join(ROOT, "src"), "-I",
                                os.path.join(ROOT, "include"), "-o", ptx, os.path.join(ROOT, source)], capture_output=True, text=True, check=False)
            self.assertEqual((p.returncode, p.stderr), (0, ""))
            if PTXAS != "-":
                p = subprocess.run([PTXAS, "-arch=sm_80", "-o", os.path.join(folder, "kernels.cubin"), ptx], capture_output=True, text=True,
                                   check=False)
                self.assertEqual((p.returncode, p.stderr), (0, ""))
            with open(ptx, encoding="ascii") as f:
                return [line.split()[2].rstrip("(") for line in f if line.startswith(".visible .entry")]

    def test_weft_s_kernels(self):
        self.assertEqual(self.entries("src/gpu/span_kernels.cu"), ["span_wc", "span_histogram", "span_hash", "span_grep"])

    def test_calls_of_kernels(self):
        self.assertEqual(len(self.entries("tests/gpu/calls.cu")), 7)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
