#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the console blocks of softverbs/README.md: each `$ ` line must succeed and print what the README shows. In the README, `...` in
a line stands for any text, and a line with only `...` for any lines.

Usage: test_readme.py SOFTVERBS-COMMAND
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
readme = os.path.join(here, "..", "README.md")


def steps(text):
    """(command, expected lines) of all console blocks, in order."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        command, lines = None, []
        for line in block.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command, lines
                command, lines = line[2:], []
            else:
                lines.append(line)
        if command is not None:
            yield command, lines


def pattern(lines):
    parts = []
    for line in lines:
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r".*".join(re.escape(piece.rstrip()) for piece in line.split("...")) + r"\s*\n")
    return re.compile("".join(parts))


def main():
    command = os.path.abspath(sys.argv[1])
    with open(readme) as f:
        todo = list(steps(f.read()))
    assert len(todo) >= 10, "README.md has lost its console blocks"
    failed = 0
    with tempfile.TemporaryDirectory(prefix="softverbs-readme-") as tmp:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SOFTVERBS_") and not k.startswith("LD_")}
        env.update(SOFTVERBS_DIR=os.path.join(tmp, "fabrics"), PATH=os.path.dirname(command) + os.pathsep + env["PATH"])
        for example in ("regions.c", "infiniband.json"):
            shutil.copy(os.path.join(here, "..", "examples", example), tmp)
        try:
            for line, expected in todo:
                # A file and not a pipe: what a command leaves running in the background holds it open.
                with tempfile.TemporaryFile("w+", dir=tmp) as out:
                    done = subprocess.run(["bash", "-c", line], cwd=tmp, env=env, timeout=60, stdin=subprocess.DEVNULL,
                                          stdout=out, stderr=subprocess.STDOUT)
                    out.seek(0)
                    printed = out.read()
                ok = done.returncode == 0 and pattern(expected).fullmatch(printed)
                print(("ok" if ok else "NOT OK") + ": " + line, flush=True)
                if not ok:
                    failed += 1
                    print(f"status {done.returncode}, printed:\n{printed}\nexpected:\n" + "\n".join(expected))
        finally:
            subprocess.run([command, "down", "--all", "--force"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return failed != 0


sys.exit(main())
