# SPDX-License-Identifier: MIT
"""The cost of waiting, beside the kernel's own wake-up of a process."""
from rig import Ours, Row, nodes, scaled, values

NAME = "wait"
TITLE = "what a blocked node uses, and how soon after the event it goes on"

# group: (iterations, warm-up); blocked: milliseconds
TESTS = {"blocked": (5000, 0), "wake_signal": (1000, 50), "wake_message": (1000, 50)}


def rows(context):
    return [Row("blocked", "processor use of a blocked node (wanted: under 2)", "%", "lower"),
            Row("wake_signal", "waking by put_signal (wanted: under 50)", "us", "lower"),
            Row("wake_message", "waking by a message (wanted: under 50)", "us", "lower")]


def groups(context):
    return list(TESTS)


class Weft(Ours):
    PROGRAM = "bench_wait"

    def test(self, group, scale, test):
        iterations, warmup = TESTS[group]
        word = f"{test}:0:{scaled(iterations, scale)}:{scaled(warmup, scale, 0)}"
        return values(nodes(2, [self.program, word]), lambda line: group)

    def measure(self, group, scale):
        return self.test(group, scale, group)


class Kernel(Weft):
    """A futex on which one process waits and which another one wakes: the fastest wake-up possible."""
    peer = "futex"
    limit = True

    def measure(self, group, scale):
        return {} if group == "blocked" else self.test(group, scale, "wake_futex")


def sides(context):
    return [Weft(context), Kernel(context)]
