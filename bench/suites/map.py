# SPDX-License-Identifier: MIT
"""Whole commands: `weft map` beside GNU parallel and wc, on a text of 200 MB that is generated once."""
import filecmp
import os
import random
import shutil
import tempfile
import time

import memory
from rig import OUT, Missing, Row, Side, run, scaled, start, together, values

NAME = "map"
TITLE = "`weft map` as a whole command, beside `parallel --pipepart --keep-order` and `wc`, text of 200 MB"

TEXT_BYTES = 200_000_000
BLOCKS = {"256 KiB": (256, 8.0), "4 MiB": (4096, 2.0)}  # KiB, times GNU parallel's speed to reach
PIECES = 2000  # of the run that measures what a piece costs
LINE = b"x" * 63 + b"\n"
BLOCK_OF_A_LINE = "32"  # bytes: less than a line, so that each line is a piece, for both


def text(scale):
    """A text of random words; the same every time. Returns its path."""
    size = int(TEXT_BYTES * scale)
    path = os.path.join(OUT, f"text-{size // 1_000_000}MB")
    if os.path.exists(path) and os.path.getsize(path) == size:
        return path
    os.makedirs(OUT, exist_ok=True)
    rng = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    vocabulary = ["".join(rng.choices(letters, range(26, 0, -1), k=rng.randint(1, 12))) for _ in range(5000)]
    lines = [" ".join(rng.choices(vocabulary, k=rng.randint(0, 20))) + "\n" for _ in range(20000)]
    left = size
    with open(path + ".part", "wb") as f:
        while left > 0:
            rng.shuffle(lines)
            piece = "".join(lines).encode()[:left]
            f.write(piece)
            left -= len(piece)
    os.replace(path + ".part", path)
    return path


def lines_file(count):
    path = os.path.join(OUT, f"lines-{count}")
    os.makedirs(OUT, exist_ok=True)
    with open(path, "wb") as f:
        f.write(LINE * count)
    return path


def rows(context):
    found = []
    for block, (_, target) in BLOCKS.items():
        found.append(Row(f"cat {block} to null", f"cat, {block} pieces, to /dev/null", "MB/s", "higher", target))
        found.append(Row(f"cat {block} to file", f"cat, {block} pieces, to a file", "MB/s", "higher", target))
    found.append(Row("wc", "count lines, words, bytes", "MB/s", "higher"))
    found.append(Row("piece", "a piece of `true`, one slot", "us", "lower"))
    found.append(Row("beyond", "a piece of `true`, beyond a bare start", "us", "lower"))
    found.append(Row("start", "one piece of `true`, whole command", "ms", "lower"))
    for block in BLOCKS:
        found.append(Row(f"own {block}", f"peak memory, cat, {block} pieces", "MB", "lower"))
        found.append(Row(f"all {block}", f"the same with mapped pages of files, {block} pieces", "MB", "lower"))
    return found


def groups(context):
    return ([f"cat {b} to {to}" for b in BLOCKS for to in ("null", "file")] + ["wc", "piece"]
            + [f"memory {b}" for b in BLOCKS])


def bare(context, scale):
    """Microseconds for a vfork, exec and wait of `true`."""
    word = f"spawn:0:{scaled(PIECES, scale, 50)}:20"
    return values(run([context.program("bench_spawn"), word, "true"]), lambda line: 0)[0]


def timed(argv, env=None, out=None, timeout=300):
    """Seconds of a whole command; its output to /dev/null, or to the file `out`."""
    with open(out or os.devnull, "wb") as f:
        began = time.monotonic()
        p = start(argv, env=env, stdout=f)
        together([p], timeout)
        return time.monotonic() - began


class Mapper(Side):
    """The arguments that weft map and GNU parallel share: the same file, blocks and number of commands at once."""
    checked = False
    pieces = PIECES

    def __init__(self, context):
        self.context = context
        self.jobs = max(1, len(context.cores))

    def cat(self, block_kib, path):
        raise NotImplementedError

    def true(self, path):
        raise NotImplementedError

    def measure(self, group, scale):
        kind, _, rest = group.partition(" ")
        path = text(scale)
        size = os.path.getsize(path)
        if kind == "cat":
            block, to = rest.split(" to ")
            argv = self.cat(BLOCKS[block][0], path)
            if to == "null":
                return {group: size / 1e6 / timed(argv)}
            out = os.path.join(OUT, "map.part")
            try:
                seconds = timed(argv, out=out)
                if not self.checked and not filecmp.cmp(path, out, shallow=False):
                    raise Missing("its output is not the input")
                self.checked = True
            finally:
                if os.path.exists(out):
                    os.unlink(out)
            return {group: size / 1e6 / seconds}
        if kind == "memory":
            with open(os.devnull, "wb") as null:
                p = start(self.cat(BLOCKS[rest][0], path), stdout=null)
            own, every = memory.peak(p)
            together([p], 10)
            return {f"own {rest}": own / 1e6, f"all {rest}": every / 1e6}
        if kind == "piece":
            return self.piece(scale)
        return self.words(path, size)

    def piece(self, scale):
        """The time of N pieces minus that of one, divided by N - 1; and this minus a bare start, measured next to it. That can
        be below zero, because the bare test starts no command before the last one has ended."""
        count = scaled(self.pieces, scale, 50)
        many, one = lines_file(count), lines_file(1)
        took = timed(self.true(many))
        alone = timed(self.true(one))
        each = (took - alone) * 1e6 / (count - 1)
        return {"piece": each, "beyond": each - bare(self.context, scale), "start": alone * 1e3}

    def words(self, path, size):
        return {}


class Weft(Mapper):
    def __init__(self, context):
        super().__init__(context)
        self.program = os.path.join(context.build, "src", "cli", "weft")

    def missing(self):
        return self.context.need(self.program)

    def argv(self, *options):
        return [self.program, "map", *options]

    def cat(self, block_kib, path):
        return self.argv("--block", f"{block_kib}K", "--nodes", str(self.jobs), "--slots", "1", path, "--", "cat")

    def true(self, path):
        return self.argv("--block", BLOCK_OF_A_LINE, "--nodes", "1", "--slots", "1", path, "--", "true")

    def words(self, path, size):
        return {"wc": size / 1e6 / timed(self.argv("--nodes", str(self.jobs), "--slots", "1", "--kernel", "wc", path))}


class Parallel(Mapper):
    peer = "GNU parallel"
    pieces = PIECES // 10  # a job of its takes milliseconds

    def missing(self):
        if not shutil.which("parallel"):
            return "parallel is not installed (Debian: parallel)"
        with tempfile.TemporaryFile("w+") as f:
            together([start(["parallel", "--version"], stdout=f)], 20)
            f.seek(0)
            return None if "GNU parallel" in f.read() else "the 'parallel' installed is not GNU parallel"

    def argv(self, jobs, block, path, command):
        return ["parallel", "--will-cite", "--pipepart", "--keep-order", "--block", block, "-j", str(jobs), "-a", path,
                command]

    def cat(self, block_kib, path):
        return self.argv(self.jobs, f"{block_kib}k", path, "cat")

    def true(self, path):
        return self.argv(1, BLOCK_OF_A_LINE, path, "true")

class Bare(Side):
    """The start of a command and nothing else."""
    peer = "bare start"
    limit = True

    def __init__(self, context):
        self.context = context

    def missing(self):
        return self.context.need(self.context.program("bench_spawn"))

    def measure(self, group, scale):
        return {"piece": bare(self.context, scale)} if group == "piece" else {}


class Words(Side):
    """wc alone, on one core: in the plain locale, and in UTF-8, where it must decode characters to know the words."""

    def __init__(self, locale):
        self.locale, self.peer = locale, f"wc (LC_ALL={locale})"

    def missing(self):
        return None if shutil.which("wc") else "wc is not installed"

    def measure(self, group, scale):
        if group != "wc":
            return {}
        path = text(scale)
        return {"wc": os.path.getsize(path) / 1e6 / timed(["wc", path], env={"LC_ALL": self.locale})}


def sides(context):
    return [Weft(context), Parallel(context), Bare(context), Words("C"), Words("C.UTF-8")]
