# SPDX-License-Identifier: MIT
"""What waiting costs: processor time while blocked, and the wake-up, beside the kernel's own."""
from rig import Row, Side, nodes, scaled, values

NAME = "wait"
TITLE = "a node that waits: what it uses, and how soon it goes on"

# group: (test, iterations, warm-up)
TESTS = {"blocked": ("blocked", 10000, 0), "signal": ("wake_signal", 300, 20), "message": ("wake_message", 300, 20)}


def rows(context):
    return [Row("blocked", "blocked for 10 s, of a core", "%", "lower", None),
            Row("signal", "wake-up by put_signal", "us", "lower", None),
            Row("message", "wake-up by a message", "us", "lower", None)]


def groups(context):
    return list(TESTS)


class Weft(Side):
    def __init__(self, context):
        self.context, self.program = context, context.program("bench_wait")

    def missing(self):
        return self.context.need(self.program)

    def test(self, group, word):
        out = nodes(2, [self.program, word], [self.context.core(0), self.context.core(1)])
        return values(out, lambda line: group)

    def measure(self, group, scale):
        test, iterations, warmup = TESTS[group]
        return self.test(group, f"{test}:0:{scaled(iterations, scale)}:{scaled(warmup, scale, 1)}")


class Kernel(Weft):
    """A process woken by another's futex call."""
    peer = "futex"
    limit = True

    def measure(self, group, scale):
        if group == "blocked":
            return {}
        return self.test(group, f"wake_futex:0:{scaled(300, scale)}:{scaled(20, scale, 1)}")


def sides(context):
    return [Weft(context), Kernel(context)]
