# SPDX-License-Identifier: MIT
"""metal_text.py FOLDER OUT: writes weft/device.metal.h and the headers that it includes to OUT, as one text. Kernels of Metal are compiled
at run time, where there are no headers. If OUT ends in .c, the text is the C string gpu_metal_text (gpu.h)."""
import os
import re
import sys

done = set()


def whole(folder, name):
    """The text of a header. Each #include "..." that counts for Metal is replaced by that header's text, the first time."""
    out, skip = [], 0
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), f.read(), flags=re.S)
    for line in text.splitlines():
        # Includes behind #if !defined(WEFT_DEVICE_METAL) or its #else are for C.
        if re.match(r"#if !defined\((WEFT_DEVICE_METAL|__METAL_VERSION__)\)", line):
            skip = 1
        elif line.startswith("#endif"):
            skip = 0
        named = re.match(r'#include "(.+)"', line)
        if named and not skip and named[1] != "types.h":
            if named[1] not in done:
                done.add(named[1])
                out.append(whole(folder, named[1]))
        elif not re.match(r'#include ("|<std)', line) and line.strip():
            out.append(line)
    return "\n".join(out)


text = whole(sys.argv[1], "device.metal.h")
with open(sys.argv[2], "w", encoding="ascii") as f:
    if sys.argv[2].endswith(".c"):
        f.write('#include "gpu/gpu.h"\n\nconst char gpu_metal_text[] =\n')
        for line in text.splitlines():
            f.write('    "' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"\n')
        f.write("    ;\n")
    else:
        f.write(text + "\n")
