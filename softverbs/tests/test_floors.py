#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The code follows the table of floors in docs/design.md. Every source file of a room stands in the table once. A file uses functions and data only of
files on lower floors. A room includes only its own headers and those of lower rooms. The conformance suite includes nothing of softverbs.

Usage: test_floors.py SOURCE-DIRECTORY BUILD-DIRECTORY   (of softverbs, compiled)
"""
import glob
import os
import re
import subprocess
import sys

source, build = (os.path.abspath(path) for path in sys.argv[1:3])
OURS = re.compile(r"(sv|sf|cli|ibv)_")  # names of libc that lib/paths.c has, too, are no way to tell


def floors():
    """[(room, [file])] of the table, the lowest floor first"""
    with open(os.path.join(source, "docs", "design.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (\w+) \| ([\w ]+) \|", file.read(), re.M)
    return [(room, files.split()) for room, files in rows if os.path.isdir(os.path.join(source, room))]


def objects(table):
    """{(room, file): its compiled form}"""
    found = {}
    for room in {room for room, _ in table}:
        for where, _, names in os.walk(os.path.join(build, room)):
            for name in names:
                # Meson names it async.c.o, or .._async.c.o where the source lies in another directory than its target.
                match = re.fullmatch(r"(?:\.\._)*(\w+)\.c\.o", name)
                if match:
                    found[room, match.group(1)] = os.path.join(where, name)
    missing = ["{}/{}.c".format(room, name) for room, files in table for name in files if (room, name) not in found]
    if missing:
        sys.exit(f"not compiled below {build}: {', '.join(missing)}")
    return {(room, name): found[room, name] for room, files in table for name in files}


def symbols(paths):
    """{path: (defined, used)}"""
    found = {path: (set(), set()) for path in paths}
    out = subprocess.run(["nm", "-A", "-P", *paths], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        path, name, kind = re.match(r"(.*): (\S+) (\S)", line).groups()
        if OURS.match(name) and kind in "TDBRVWCU":
            found[path][kind == "U"].add(name)
    return found


def check_calls(table):
    floor = {(room, name): n for n, (room, files) in enumerate(table) for name in files}
    compiled = objects(table)
    known = symbols(compiled.values())
    used = {file: known[path][1] for file, path in compiled.items()}
    where = {symbol: file for file, path in compiled.items() for symbol in known[path][0]}
    seen, wrong = 0, []
    for file, names in used.items():
        for symbol in sorted(names & where.keys()):
            seen += 1
            if floor[where[symbol]] >= floor[file]:
                wrong.append("{}/{}.c uses {} of {}/{}.c, which is on no lower floor".format(*file, symbol, *where[symbol]))
    return seen, wrong


def check_includes(table):
    rooms = list(dict.fromkeys(room for room, _ in table))
    seen, wrong = 0, []
    for path in sorted(p for room in rooms for p in glob.glob(os.path.join(source, room, "**", "*.[ch]"), recursive=True)):
        room = os.path.relpath(path, source).split(os.sep)[0]
        with open(path, encoding="utf-8") as file:
            for target in re.findall(r'^#include "(.*)"', file.read(), re.M):
                seen += 1
                to = os.path.relpath(os.path.normpath(os.path.join(os.path.dirname(path), target)), source).split(os.sep)[0]
                if to not in rooms or rooms.index(to) > rooms.index(room):
                    wrong.append(f"{os.path.relpath(path, source)} includes {target}, which is of no lower room")
    for path in glob.glob(os.path.join(source, "tests", "conformance", "*.[ch]")):
        with open(path, encoding="utf-8") as file:
            wrong += [f"{os.path.relpath(path, source)} includes {target}: it is to run on any device, without softverbs"
                      for target in re.findall(r'^#include "(.*)"', file.read(), re.M) if target != "conf.h"]
    return seen, wrong


def check_files(table):
    listed = [os.path.join(room, name + ".c") for room, files in table for name in files]
    there = {os.path.relpath(path, source) for room, _ in table for path in glob.glob(os.path.join(source, room, "*.c"))}
    wrong = [f"{name}: not in the table of docs/design.md" for name in sorted(there - set(listed))]
    wrong += [f"{name}: in the table of docs/design.md, and there is no such file" for name in sorted(set(listed) - there)]
    return wrong + [f"{name}: twice in the table of docs/design.md" for name in sorted({n for n in listed if listed.count(n) > 1})]


def main():
    table = floors()
    wrong = check_files(table)
    if wrong:
        return wrong
    calls, wrong_calls = check_calls(table)
    includes, wrong_includes = check_includes(table)
    print(f"{len(table)} floors, {sum(len(files) for _, files in table)} files, {calls} uses of symbols, {includes} includes")
    if calls < 100 or includes < 50:
        wrong.append("so few: this test no longer sees what it is to judge")
    return wrong + wrong_calls + wrong_includes


complaints = main()
sys.exit("\n".join(complaints) if complaints else 0)
