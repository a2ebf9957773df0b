# SPDX-License-Identifier: MIT
"""What the tests of commands share: a clean environment, who is alive, and waiting for something to be so."""
import os
import time


def patience(seconds):
    """How long to wait for what takes far less than `seconds` on a machine that is quick and quiet: tests/speed says what this one is."""
    return seconds * max(1.0, float(os.environ.get("TEST_SLOWNESS", "1")))


def clean_env(**more):
    """This environment without what tells a node who it is, and with `more`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "MLX_", "JACCL_", "PMIX_"))}
    env.update(more)
    return env


STATE, EXIT_SIGNAL = 0, 35  # of what stat() gives: a letter, "T" stopped, "Z" ended and not reaped, ...; what tells the parent of the end


def stat(pid):
    """/proc/PID/stat behind the name; OSError when there is no such process."""
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
    """What the condition gives, once that is true; fails after `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError("waited in vain until " + what)
