#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the built-in profiles as a C table, so that the command finds them without any installed file.

embed.py OUTPUT NAME.json...
"""
import os
import sys

output, files = sys.argv[1], sys.argv[2:]
names = [os.path.splitext(os.path.basename(path))[0] for path in files]
with open(output, "w") as out:
    out.write('/* Made by embed.py. */\n#include "keys.h"\n\n')
    for number, path in enumerate(files):
        with open(path, "rb") as f:
            data = f.read()
        out.write("static const unsigned char json_%d[] = {\n" % number)
        for at in range(0, len(data), 24):
            out.write(",".join(str(b) for b in data[at:at + 24]) + ",\n")
        out.write("};\n")
    out.write("\nconst struct sv_builtin_profile sv_builtin_profiles[] = {\n")
    for number, name in enumerate(names):
        out.write('    {"%s", json_%d, sizeof json_%d},\n' % (name, number, number))
    out.write("};\nconst size_t sv_builtin_profile_count = %d;\n" % len(names))
