# SPDX-License-Identifier: MIT
"""Helpers for tests of commands: a clean environment, which processes are alive, and waiting for a condition."""
import os
import signal
import time


def slowness():
    """How many times as long something may take here as on a fast and idle machine: tests/speed says how fast this machine was at the start, and
    its load how many others share it now. tests/suite itself causes some load."""
    crowd = os.getloadavg()[0] / ((os.cpu_count() or 1) + 3)
    return max(1.0, float(os.environ.get("TEST_SLOWNESS", "1"))) * min(max(crowd, 1.0), 5.0)


def patience(seconds):
    """How long to wait for something that takes far less than `seconds` on a fast and idle machine."""
    return seconds * slowness()


def clean_env(**more):
    """This environment without the variables that name a node, and with `more`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "MLX_", "JACCL_", "PMIX_"))}
    env.update(more)
    return env


STATE, EXIT_SIGNAL = 0, 35  # indices into stat()'s result: the state ("T" stopped, "Z" ended and not reaped, ...); the signal that the parent gets at the end


def stat(pid):
    """The fields of /proc/PID/stat after the name; OSError if there is no such process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()


def state(pid):
    return stat(pid)[STATE]


def alive(pid):
    try:
        return state(pid) not in "ZX"
    except OSError:
        return False


def until(what, condition, limit):
    """Waits until the condition is true, and returns its value; fails after `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError("waited in vain until " + what)


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return any(line.startswith("SigCgt:") and int(line.split()[1], 16) >> (number - 1) & 1 for line in f)
    except OSError:
        return False


def pending(pid, number):
    """Whether a signal was sent to a process, and not delivered yet."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            return any(line.startswith(("SigPnd:", "ShdPnd:")) and int(line.split()[1], 16) >> (number - 1) & 1 for line in f)
    except OSError:
        return False


def stop(pid):
    """Stops a process with all its threads. The signal alone reaches one thread at once, but the others run on until that one handles it."""
    os.kill(pid, signal.SIGSTOP)
    until(f"process {pid} has stopped", lambda: all(state(f"{pid}/task/{t}") in "TZX" for t in os.listdir(f"/proc/{pid}/task")), patience(20))


def go_on(pid):
    """Continues a process that was stopped, if it is still there."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass
