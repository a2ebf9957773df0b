# SPDX-License-Identifier: MIT
"""The structure that docs/architecture.md describes: rooms include only headers of lower floors, files call each other in one direction,
and no file is longer than a person reads at once.

test_floors.py SOURCE_ROOT OBJECT_FOLDER...: the objects of the library and of the command."""
import os
import re
import subprocess
import sys
import unittest

ROOT = sys.argv.pop(1)
OBJECTS = sys.argv[1:]
del sys.argv[1:]
LINES_MOST = 600
LONG = "Over 600 lines:"  # and why, in the head of the file


def floors():
    """Room -> its floor, from the table."""
    with open(os.path.join(ROOT, "docs", "architecture.md"), encoding="utf-8") as f:
        return {room: int(floor) for floor, room in re.findall(r"^\| (\d+) \| `(src/[a-z/]+)/` \|", f.read(), re.M)}


def files(folder, ends=(".c", ".h")):
    for where, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith(ends):
                yield os.path.relpath(os.path.join(where, name), ROOT)


def room_of(path, rooms):
    return max((r for r in rooms if path.startswith(r + "/")), key=len, default=None)


def circles(arrows):
    """Strongly connected parts of more than one (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(arrows.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            part = []
            while not part or part[-1] != v:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    for v in sorted(arrows):
        if v not in index:
            visit(v)
    return found


def calls(folder):
    """File -> files whose functions or data it names."""
    defined, names = {}, sorted(name for name in os.listdir(folder) if name.endswith(".o"))
    wanted = {name: set() for name in names}
    out = subprocess.run(["nm", "-gA", *names], cwd=folder, check=True, capture_output=True, text=True).stdout if names else ""
    for line in out.splitlines():
        name, _, rest = line.partition(".o:")
        name, words = name + ".o", rest.split()
        if len(words) == 3 and words[1] in "TDBRSVWC":
            defined[words[2]] = name
        elif len(words) == 2 and words[0] == "U":
            wanted[name].add(words[1])
    return {name: {defined[s] for s in symbols if s in defined} - {name} for name, symbols in wanted.items()}


class Floors(unittest.TestCase):
    maxDiff = None

    def test_every_room_has_a_floor(self):
        rooms = floors()
        self.assertEqual([f for f in files("src") if room_of(f, rooms) is None], [])
        self.assertEqual([r for r in rooms if not os.path.isdir(os.path.join(ROOT, r))], [])

    def test_rooms_include_only_lower_floors(self):
        rooms, wrong, includes = floors(), [], {}
        for path in files("src"):
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                named = re.findall(r'^#include "([^"]+)"', f.read(), re.M)
            here = room_of(path, rooms)
            for name in named:
                target = "src/" + name
                if not os.path.exists(os.path.join(ROOT, target)):
                    continue  # a public header: below all
                there = room_of(target, rooms)
                includes.setdefault(path, set()).add(target)
                if there != here and rooms[there] >= rooms[here]:
                    wrong.append(f"{path} includes {name}, of {there}, which is not below {here}")
        self.assertEqual(wrong, [])
        self.assertEqual(circles(includes), [])

    def test_files_call_in_one_direction(self):
        for folder in OBJECTS:
            arrows = calls(folder)
            self.assertGreater(len(arrows), 10, folder)
            self.assertEqual(circles(arrows), [], folder)

    def test_waits_use_the_monotonic_clock(self):
        """Waits for condition variables end by base_cond_wait(): a change of the wall clock does not move their end."""
        wrong = []
        for path in files("src"):
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                if path != "src/base/cond.c" and re.search(r"pthread_cond_(timedwait|clockwait)|pthread_mutex_timedlock|sem_timedwait", f.read()):
                    wrong.append(path)
        self.assertEqual(wrong, [])

    def test_no_file_is_too_long(self):
        long = []
        for folder in ("src", "softverbs"):
            for path in files(folder):
                with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                    text = f.read()
                if text.count("\n") > LINES_MOST and LONG not in text.split("*/")[0]:
                    long.append(f"{path}: {text.count(chr(10))} lines")
        self.assertEqual(long, [])


if __name__ == "__main__":
    unittest.main()
