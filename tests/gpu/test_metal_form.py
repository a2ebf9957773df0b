#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft/device.metal.h and kernels that call all of it, compiled as Metal's language with a stand-in for its library: every pointer says
where it leads, and leads nowhere else; nothing is used that Metal does not have. Nothing is run.

Usage: test_metal_form.py SOURCE-ROOT COMPILER...
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, COMPILER = os.path.abspath(sys.argv[1]), sys.argv[2:]
KERNELS = os.path.join(ROOT, "tests", "gpu", "metal_kernels.metal")
TYPES = r"(?:u?int(?:8|16|32|64)_t|u?int|void|bool|char|weft_\w+|metal_\w+|metal::atomic_uint)"


def compiled(*options, source=KERNELS):
    return subprocess.run([*COMPILER, "-x", "c++", "-std=c++14", "-D__METAL_VERSION__=300", "-Wall", "-Wextra", "-Wshadow", "-Wconversion",
                           "-Werror", "-isystem", os.path.join(ROOT, "tests", "gpu", "metal_stand_in"), "-I", os.path.join(ROOT, "include"),
                           "-I", os.path.join(ROOT, "tests", "gpu"), *options, source], capture_output=True, text=True, check=False)


class Form(unittest.TestCase):
    def test_compiles(self):
        p = compiled("-fsyntax-only", "-DSTAND_IN_ADDRESS_SPACES")
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_the_text_that_is_compiled_at_run_time(self):
        with tempfile.TemporaryDirectory() as folder:
            text, whole = os.path.join(folder, "text.metal"), os.path.join(folder, "whole.metal")
            subprocess.run([sys.executable, os.path.join(ROOT, "src", "gpu", "metal_text.py"), os.path.join(ROOT, "include", "weft"), text],
                           check=True)
            with open(text, encoding="ascii") as f, open(KERNELS, encoding="utf-8") as k, open(whole, "w", encoding="utf-8") as out:
                header = f.read()
                self.assertEqual(re.findall(r"#include.*", header), ["#include <metal_stdlib>"])
                out.write(header + k.read().replace("#include <weft/device.metal.h>", ""))
            p = compiled("-fsyntax-only", "-DSTAND_IN_ADDRESS_SPACES", "-Wno-unused-function", source=whole)
            self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_a_pointer_to_other_memory_does_not(self):
        with tempfile.NamedTemporaryFile("w", suffix=".metal") as f:
            f.write('#include <weft/device.metal.h>\nkernel void wrong(device weft_device *d) { (void)weft_device_fence(d, 0); }\n')
            f.flush()
            self.assertNotEqual(compiled("-fsyntax-only", "-DSTAND_IN_ADDRESS_SPACES", source=f.name).returncode, 0)

    def test_every_pointer_says_where_it_leads(self):
        text = compiled("-E", "-P", "-DSTAND_IN_WORDS").stdout
        text = re.sub(r"\s+", " ", text[text.index("weft_device_cell"):])
        pointers = list(re.finditer(r"((?:\b\w+ )*?)\b(?:const )?" + TYPES + r" ?\*", text))
        self.assertGreater(len(pointers), 100)
        unsaid = [text[m.start():m.end() + 30] for m in pointers if not re.search(r"\b(device|thread|constant)\b", m[0])]
        self.assertEqual(unsaid, [])

    def test_nothing_that_metal_does_not_have(self):
        text = compiled("-E", "-P", "-DSTAND_IN_WORDS").stdout
        text = text[text.index("weft_device_cell"):]
        for word in ("long long", "double", "goto", "virtual", "throw", "new", "dynamic_cast", "thread_local", "__atomic", "asm"):
            self.assertIsNone(re.search(r"\b" + word + r"\b", text), word)
        self.assertIsNone(re.search(r"\d(ull|ULL|ll|LL)\b", text))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
