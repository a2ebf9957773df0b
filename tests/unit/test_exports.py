#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The shared library exports the functions of the public headers, and nothing else; and it has few thread-local variables.

Usage: test_exports.py LIBRARY INCLUDE-DIRECTORY
"""
import glob
import os
import re
import subprocess
import sys

library, include = sys.argv[1:3]
darwin = sys.platform == "darwin"
command = ["nm", "-gU", library] if darwin else ["nm", "-D", "--defined-only", library]
lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
exported = {line.split()[-1].split("@")[0].removeprefix("_" if darwin else "") for line in lines if line.strip()}
# Names that begin with an underscore come from the toolchain (sanitizers and coverage add some); weft has none.
exported = {name for name in exported if not name.startswith("_")}

declared = set()
for path in glob.glob(os.path.join(include, "**", "*.h"), recursive=True):
    with open(path, encoding="utf-8") as f:
        declared |= {re.search(r"(\w+)\(", line)[1] for line in f if line.startswith("WEFT_API ")}

for name in sorted(exported - declared):
    print(f"exported, but in no public header: {name}")
for name in sorted(declared - exported):
    print(f"in a public header, but not exported: {name}")
print(f"{len(exported)} exported, {len(declared)} declared")

# Every thread of every program has its own copy of the thread-local variables, and the start of each fills it: no buffers there.
LOCAL_MOST = 4096
if not darwin:
    headers = subprocess.run(["readelf", "-lW", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    local = next((int(line.split()[5], 16) for line in headers.splitlines() if line.split()[:1] == ["TLS"]), 0)
    if local > LOCAL_MOST:
        sys.exit(f"{local} bytes of thread-local variables; at most {LOCAL_MOST}")
sys.exit(exported != declared or not declared or any(not n.startswith("weft_") for n in exported))
