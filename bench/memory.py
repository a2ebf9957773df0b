# SPDX-License-Identifier: MIT
"""The memory of a command and all processes that it starts: proportional set size, so that shared pages count once."""
import os
import time

EVERY_SECONDS = 0.01


def tree(root):
    """The process and all its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, ())
    return found


def now(root):
    """(anonymous and shared bytes, the same with pages of mapped files) of the whole tree."""
    own = every = 0
    for pid in tree(root):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                fields = dict(line.split(":", 1) for line in f.read().splitlines()[1:])
        except (OSError, ValueError):
            continue  # it has ended

        def kib(name):
            return int(fields.get(name, "0 kB").split()[0])
        own += kib("Pss_Anon") + kib("Pss_Shmem")
        every += kib("Pss")
    return own * 1024, every * 1024


def peak(process):
    """Samples until the process ends, and returns the largest values. Processes that live shorter than the time between two samples are missed."""
    own = every = 0
    while process.poll() is None:
        a, b = now(process.pid)
        own, every = max(own, a), max(every, b)
        time.sleep(EVERY_SECONDS)
    return own, every
