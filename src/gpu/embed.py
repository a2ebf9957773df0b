# SPDX-License-Identifier: MIT
"""embed.py IN OUT: the bytes of a file as C, for gpu.h's gpu_span_image. A zero byte follows, because PTX is a text."""
import sys

with open(sys.argv[1], "rb") as f:
    data = f.read()
with open(sys.argv[2], "w", encoding="ascii") as f:
    f.write('#include "gpu/gpu.h"\n\nstatic const _Alignas(64) unsigned char image[] = {\n')
    for i in range(0, len(data), 32):
        f.write(",".join(map(str, data[i:i + 32])) + ",\n")
    f.write("0};\nconst void *const gpu_span_image = image;\n")
