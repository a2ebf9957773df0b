#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the results in meson's testlog.json: prints "PASSED FAILED SKIPPED", and names on stderr what did not pass.

Usage: count.py LABEL TESTLOG
"""
import json
import sys

label, path = sys.argv[1:]
PASSED = ("[ RUN      ]", "[       OK ]")  # cmocka's
passed = failed = skipped = 0
try:
    with open(path) as f:
        for line in f:
            result = json.loads(line)
            outcome = result["result"]
            if outcome in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif outcome == "SKIP":
                skipped += 1
                print(f"{label}: skipped: {result['name']}", file=sys.stderr)
            else:
                failed += 1
                print(f"\n{label}: {outcome}: {result['name']}", file=sys.stderr)
                # First what tells most, where a log is cut: sanitizers and failed checks speak on stderr.
                for stream in ("stderr", "stdout"):
                    lines = (result.get(stream) or "").splitlines()
                    tail = [line for line in lines if not line.startswith(PASSED)][-40:]
                    if tail:
                        print(f"--- {stream}, its end\n" + "\n".join(tail), file=sys.stderr)
except FileNotFoundError:
    pass
print(passed, failed, skipped)
