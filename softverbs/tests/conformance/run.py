#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the conformance suite and compares the results with the expected ones.

  run.py EXPECTED [--doc PAGE] -- COMMAND...      COMMAND runs the suite and prints a line for each check

EXPECTED lists the checks that are known to have a result other than "ok" on this device, one in a line:

  not-ok NAME   # the reason
  skip NAME     # the reason

NAME may end in *, for all checks whose name begins with the part before it. The run fails if a check that is not listed fails or is
skipped, if a listed check has another result, and if the suite does not end normally. The exit status is 77 if that of the command is 77:
it cannot run here. With --doc, the page must contain each NAME that is not ok. The suite is told which checks are not expected to be ok
(--brief), because those usually wait for something that never comes.
"""
import re
import subprocess
import sys

PROGRAM = "run.py"


def expectations(path):
    """The file's lines: [(result, name, used)]."""
    lines = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text, _, reason = line.partition("#")
            if not text.strip():
                continue
            match = re.fullmatch(r"(not-ok|skip)\s+(\S+)\s*", text)
            if not match or not reason.strip():
                sys.exit(f"{path}:{number}: a line is 'not-ok NAME # reason' or 'skip NAME # reason'")
            lines.append([match[1], match[2], False])
    return lines


def expected_of(lines, name):
    for line in lines:
        if line[1] == name or (line[1].endswith("*") and name.startswith(line[1][:-1])):
            line[2] = True
            return line[0]
    return "ok"


def results(output):
    """What the suite said: {name: (result, why)}, and how many checks it announced."""
    found, plan = {}, None
    for line in output.splitlines():
        if match := re.fullmatch(r"1\.\.(\d+)", line):
            plan = int(match[1])
        elif match := re.fullmatch(r"ok \d+ - (\S+)(?: # SKIP (.*))?", line):
            found[match[1]] = ("ok" if match[2] is None else "skip", match[2] or "")
        elif match := re.fullmatch(r"not ok \d+ - ([^:\s]+): (.*)", line):
            found[match[1]] = ("not-ok", match[2])
    return found, plan


def main():
    if "--" not in sys.argv or sys.argv.index("--") not in (2, 4) or (sys.argv[2] != "--doc") != (sys.argv[2] == "--"):
        sys.exit(__doc__)
    path, command = sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]
    lines = expectations(path)
    wrong = []
    if sys.argv[2] == "--doc":
        with open(sys.argv[3], encoding="utf-8") as file:
            page = file.read()
        wrong = [f"{sys.argv[3]} says nothing of {n}" for result, n, _ in lines if result == "not-ok" and f"`{n}`" not in page]
    command += [word for result, name, _ in lines if result == "not-ok" for word in ("--brief", name)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace")
    if run.returncode == 77:
        return 77
    found, plan = results(run.stdout)
    for name, (result, why) in found.items():
        expected = expected_of(lines, name)
        if result != expected:
            wrong.append(f"{name}: expected {expected}, came {result}{': ' + why if why else ''}")
    if plan is None or len(found) != plan:
        wrong.append(f"the suite announced {plan} checks and told of {len(found)}; it exited with {run.returncode}")
    else:
        wrong += [f"{path} lists {name}, and there is no such check" for _, name, used in lines if not used]
    counts = {result: sum(1 for r, _ in found.values() if r == result) for result in ("ok", "not-ok", "skip")}
    print(f"{counts['ok']} ok, {counts['not-ok']} not ok and {counts['skip']} skipped as expected or told below")
    for line in wrong:
        print(f"{PROGRAM}: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
