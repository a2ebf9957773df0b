#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The examples print what the comments at the top of their files say.

In the first comment "Run:" is followed by a command, "It prints:" (or "It prints, in any order:") by its output, and "Exit status:" by its
exit status if that is not 0; all indented by four spaces. A file may have several such groups.

Usage: test_examples.py PATH-OF-WEFT SOURCE-DIRECTORY DIRECTORY-OF-PROGRAMS [SUFFIX]

SUFFIX: only the sources with this suffix. Those in CUDA (cu) need a GPU, so only tests/gpu/run names them.
"""
import os
import re
import shlex
import subprocess
import sys

from processes import clean_env

KEYS = {"Run:": "run", "It prints:": "prints", "It prints, in any order:": "any", "Exit status:": "status"}


def read_claims(path):
    """The groups of a file's first comment: a list of dictionaries of lists of lines."""
    with open(path, encoding="utf-8") as f:
        comment = f.read().split("*/")[0]
    groups, at = [], None
    for line in comment.splitlines():
        text = line.removeprefix(" *").removeprefix(" ")
        if text in KEYS:
            if KEYS[text] == "run":
                groups.append({"run": [], "status": ["0"]})
            at = KEYS[text]
            groups[-1][at] = []
        elif at and text.startswith("    "):
            groups[-1][at].append(text[4:])
        else:
            at = None
    return groups


def check(weft, programs, group):
    """A description of what is wrong; empty if nothing is."""
    (command,) = group["run"]
    words = shlex.split(command)
    words = [weft if w == "weft" else w for w in words]
    p = subprocess.run(words, cwd=programs, env=clean_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    got = p.stdout.splitlines()
    wanted = group.get("prints", group.get("any"))
    if "any" in group:
        got, wanted = sorted(got), sorted(wanted)
    wrong = []
    if got != wanted:
        wrong.append("printed:\n  " + "\n  ".join(got) + "\nand not:\n  " + "\n  ".join(wanted))
    if p.returncode != int(group["status"][0]):
        wrong.append(f"ended with {p.returncode} and not {group['status'][0]}")
    if wrong:
        wrong.append("standard error:\n" + p.stderr)
    return "\n".join(wrong)


def check_refused_kernels(weft, programs):
    """`weft map --kernel-from`: what it refuses, with which words. A description of what is wrong; empty if nothing is."""
    wrong = []
    for words, says in (
            (["longest.so"], "--kernel-from longest.so: expected OBJECT.so:NAME or OBJECT.so:NAME:TEXT"),
            (["none.so:longest"], "--kernel-from none.so:longest: none.so: No such file or directory"),
            (["LICENSE:longest"], "LICENSE: "),  # not a shared object
            (["longest.so:shortest"], "longest.so exports no kernel with the name shortest: declare the kernel there as "
                                      "WEFT_API extern const weft_kernel shortest"),
            (["longest.so:longest", "--kernel", "wc"], "--kernel and --kernel-from exclude each other: give only one of them"),
            (["longest.so:longest", "LICENSE", "--", "wc"], "--kernel-from and a COMMAND exclude each other: give only one of them"),
            (["longest.so:longest", "--exact", "--block", "4K"], "kernel longest needs whole lines; leave out --exact and --separator")):
        p = subprocess.run([weft, "map", "--kernel-from", *words, "LICENSE"], cwd=programs, env=clean_env(), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        if (p.returncode, p.stdout) != (2, "") or says not in p.stderr:
            wrong.append(f"--kernel-from {' '.join(words)}: ended with {p.returncode}, printed {p.stdout!r}, {p.stderr!r} and not {says!r}")
    return "\n".join(wrong)


def main():
    weft, sources, programs = (os.path.abspath(a) for a in sys.argv[1:4])
    suffix = sys.argv[4] if len(sys.argv) > 4 else ""
    passed = failed = 0
    for name in sorted(os.listdir(sources)):
        stem = re.fullmatch(rf"(\w+)\.({suffix or 'c|cpp'})", name)
        if not stem or (stem[2] == "cpp" and not os.path.exists(os.path.join(programs, stem[1]))):
            continue
        groups = read_claims(os.path.join(sources, name))
        if not groups or not all("prints" in g or "any" in g for g in groups):
            groups = []
            failed += 1
            print(f"FAILED {name}: its first comment does not say how to run it and what it prints")
        for group in groups:
            wrong = check(weft, programs, group)
            failed += bool(wrong)
            passed += not wrong
            print(f"FAILED {name}: {group['run'][0]}\n{wrong}" if wrong else f"ok {name}: {group['run'][0]}")
    if not suffix:
        wrong = check_refused_kernels(weft, programs)
        failed += bool(wrong)
        passed += not wrong
        print(f"FAILED {wrong}" if wrong else "ok: kernels that are refused")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


sys.exit(main())
