# SPDX-License-Identifier: MIT
"""How every benchmark here is measured: sides that take turns, medians with their spread, a table and a JSON.

A suite (bench/suites/NAME.py) gives rows, groups of rows, and sides. In each round, group by group, every side
measures that group once, ours first in even rounds and last in odd ones: what disturbs the machine then disturbs
all of them.
"""
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(TOP, "bench", "out")
OURS = "weft"


class Missing(Exception):
    """Raised if a side cannot measure something, with the reason. The figure is left out, never guessed."""


class Row:
    """One figure. `better`: "lower" or "higher". `target`: the ratio ours/theirs to reach against the best of the
    peers named in `against` (all but the machine's own limit when None)."""

    def __init__(self, id, name, unit, better, target=None, against=None):
        assert better in ("lower", "higher")
        self.id, self.name, self.unit, self.better = id, name, unit, better
        self.target, self.against = target, against


class Side:
    """weft or a peer. measure(group, scale) returns {row id: value} or {row id: {variant: value}}; of variants the one
    with the best median counts. `limit`: this side is not a competitor but the limit of the machine."""
    peer = OURS
    limit = False

    def missing(self):
        """Why this side cannot run at all; None when it can."""
        return None

    def prepare(self):
        pass

    def measure(self, group, scale):
        raise NotImplementedError

    def finish(self):
        pass


class Ours(Side):
    """weft's side of a benchmark with a single program, PROGRAM."""
    PROGRAM = None

    def __init__(self, context):
        self.context, self.program = context, context.program(self.PROGRAM)

    def missing(self):
        return self.context.need(self.program)


class Context:
    def __init__(self, build, quick):
        self.build, self.quick = build, quick
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]

    def program(self, name):
        return os.path.join(self.build, "bench", name)

    def need(self, path):
        return None if os.access(path, os.X_OK) else f"{os.path.relpath(path, TOP)} is not built"

    def core(self, i):
        return self.cores[i % len(self.cores)]

    def cores_of(self, i):
        """The processors of one of two hosts: two where the machine has four, because a host has more than one."""
        n = 2 if len(self.cores) >= 4 else 1
        return {self.core(n * i + k) for k in range(n)}


# --- processes -------------------------------------------------------------------------------------------------------

def _placed(core):
    """Runs in the child: a process group of its own, and a core, or a set of them."""
    def place():
        os.setpgid(0, 0)
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, core if isinstance(core, set) else {core})
    return place


def start(argv, core=None, env=None, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=None):
    """Start a process in a group of its own, so that end() reaches what it started. Not in a session of its own: Linux
    schedules sessions against each other (autogroup), and a yield in one would not let the others run."""
    return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=cwd,
                            env={**os.environ, **(env or {})}, preexec_fn=_placed(core))


def end(process):
    """End the process and all of its group, also what it left behind when it ended by itself."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
        except (ProcessLookupError, PermissionError):
            break  # nobody is left
        limit = time.monotonic() + 3
        while time.monotonic() < limit:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except (ProcessLookupError, PermissionError):
                break
            time.sleep(0.01)
    process.poll()


def why_ended(process, out, err):
    """A process's exit status and its last output: of stderr, or if that is empty of stdout, as for UCX's programs."""
    lines = [line.strip() for line in (err or "").splitlines() + [""] if line.strip()] or \
            [line.strip() for line in (out or "").splitlines() if line.strip()]
    return f"'{os.path.basename(process.args[0])}' ended with {process.returncode}" + \
        (": " + " | ".join(lines[-2:])[:300] if lines else "")


def rest_of(process):
    """The remaining output of a process that has ended, or is ended now."""
    end(process)
    try:
        return process.communicate(timeout=5)
    except (subprocess.TimeoutExpired, ValueError):
        return "", ""  # somebody holds its pipes, or they are closed


def together(processes, timeout):
    """Waits for all processes, and returns their outputs. If one fails or is late, the others are ended and Missing is raised; it
    also lists others that have failed, because one of them may be the reason."""
    outputs = [None] * len(processes)
    limit = time.monotonic() + timeout
    try:
        for i, p in enumerate(processes):
            try:
                out, err = p.communicate(timeout=max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Missing("; ".join([f"'{os.path.basename(p.args[0])}' did not end within {timeout:.0f} s",
                                         *others(p, processes)])) from None
            if p.returncode:
                raise Missing("; ".join([why_ended(p, out, err), *others(p, processes)]))
            outputs[i] = out
    finally:
        for p in processes:
            end(p)
            for stream in (p.stdout, p.stderr):
                if stream:
                    stream.close()
    return outputs


def others(failed, processes):
    return [why_ended(p, *rest_of(p)) for p in processes if p is not failed and p.poll()]


def run(argv, core=None, env=None, timeout=120, **more):
    return together([start(argv, core, env, **more)], timeout)[0]


def nodes(count, argv, cores=None, timeout=120, env=None):
    """Run a program once a node, joined through the environment. Returns the output of all of them."""
    env = {**(env or {}), "WEFT_SIZE": str(count), "WEFT_COORD": "unix:@weft-bench-%x" % int.from_bytes(os.urandom(8), "big")}
    started = []
    try:
        for rank in range(count):
            started.append(start(argv, cores[rank] if cores else None, {**env, "WEFT_RANK": str(rank)}))
    except OSError:
        for p in started:
            end(p)
        raise
    return "".join(together(started, timeout))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_listening(port, process, timeout=10):
    """Waits until a process listens on the port, without connecting to it (a server may accept only one client). Raises Missing,
    with the server's last output, if the server ends or the time is over."""
    limit = time.monotonic() + timeout
    while time.monotonic() < limit and process.poll() is None:
        for table in (f"/proc/{process.pid}/net/tcp", f"/proc/{process.pid}/net/tcp6"):  # of its network namespace
            try:
                with open(table) as f:
                    for line in f.readlines()[1:]:
                        fields = line.split()
                        if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                            return
            except OSError:
                pass
        time.sleep(0.01)
    if process.poll() is not None:
        raise Missing("the server " + why_ended(process, *rest_of(process)) + " (before it listened)")
    out, err = rest_of(process)
    said = (err or out or "").strip().splitlines()[-2:]
    raise Missing(f"the server '{os.path.basename(process.args[0])}' did not listen within {timeout:g} s"
                  + (": " + " | ".join(said)[:300] if said else ""))


def ask(server, client, timeout, coming_up=10):
    """Starts a server and then its client, each by a function of the port, and returns what the client prints. If that fails, tries two
    other ports, because another process may use this one."""
    for attempt in range(3):
        port = free_port()
        serving = server(port)
        try:
            wait_listening(port, serving, coming_up)
            return together([client(port), serving], timeout)[0]
        except Missing:
            end(serving)
            if attempt == 2:
                raise


def json_lines(text):
    """The lines of `text` that are JSON objects."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def values(text, row_of):
    """Figures from a program's JSON lines; row_of(line) names the row. "missing" raises."""
    got = {}
    for line in json_lines(text):
        if "missing" in line:
            raise Missing(line["missing"])
        got[row_of(line)] = float(line["value"])
    if not got:
        raise Missing("the program printed no figure")
    return got


def scaled(iterations, scale, least=2):
    return max(least, int(iterations * scale))


# --- the machine -----------------------------------------------------------------------------------------------------

def machine():
    """A description of the machine, without host names."""
    cpu, memory = platform.processor() or platform.machine(), 0
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    cpu = line.split(":", 1)[1].strip()
                    break
        with open("/proc/meminfo") as f:
            memory = int(f.readline().split()[1]) * 1024
    except OSError:
        try:
            cpu = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True,
                                 text=True).stdout.strip() or cpu
            memory = int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, text=True).stdout or 0)
        except OSError:
            pass
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_bytes": memory, "system": platform.system(),
            "kernel": platform.release(), "architecture": platform.machine()}


# --- rounds ----------------------------------------------------------------------------------------------------------

def take_turns(groups, sides, rounds, scale, say=lambda text: None):
    """Returns (samples, notes, ended): samples[(peer, row id)][variant] is the list of figures, one a round, None where that
    round failed; notes are (peer, what, why) of what could not be measured; ended is the exception that ended the turns early
    (Ctrl-C, SIGTERM), or None."""
    samples, notes = {}, {}
    try:
        turns(groups, sides, rounds, scale, say, samples, notes)
        ended = None
    except (KeyboardInterrupt, SystemExit) as early:
        ended = early
    return samples, [(peer, group, why) for (peer, group), why in notes.items()], ended


def turns(groups, sides, rounds, scale, say, samples, notes):
    for n in range(rounds):
        for group in groups:
            order = sides if n % 2 == 0 else list(reversed(sides))
            for side in order:
                key = (side.peer, group)
                if key in notes:
                    continue
                say(f"round {n + 1} of {rounds}: {group}: {side.peer}")
                try:
                    got = side.measure(group, scale)
                except Missing as why:
                    notes[key] = str(why)
                    continue
                for row, figure in got.items():
                    variants = figure if isinstance(figure, dict) else {"": figure}
                    for variant, value in variants.items():
                        samples.setdefault((side.peer, row), {}).setdefault(variant, []).append(value)


def best_variant(variants, better):
    pick = min if better == "lower" else max
    return pick(variants.items(), key=lambda item: statistics.median(item[1]))


def ratio_of(ours, theirs):
    """The ratio; None if it has no meaning, because a difference of two times can be zero or negative."""
    return ours / theirs if ours > 0 and theirs > 0 else None


def judge(row, samples, peers, limits):
    """The JSON rows of one figure: one for each peer, with the ratio and, for the best peer, whether the target is reached."""
    mine = samples.get((OURS, row.id))
    ours = best_variant(mine, row.better) if mine else None
    found = []
    for peer in peers:
        theirs = samples.get((peer, row.id))
        if not theirs:
            continue
        variant, figures = best_variant(theirs, row.better)
        entry = {"name": row.name, "unit": row.unit, "better": row.better,
                 "ours": statistics.median(ours[1]) if ours else None, "peer": peer, "variant": variant,
                 "theirs": statistics.median(figures), "ratio": None, "target": None, "reached": None,
                 "rounds": min(len(figures), len(ours[1])) if ours else len(figures), "limit": peer in limits,
                 "spread": {"ours": [min(ours[1]), max(ours[1])] if ours else None,
                            "theirs": [min(figures), max(figures)], "ratio": None}}
        if ours:
            entry["ratio"] = ratio_of(entry["ours"], entry["theirs"])
            each = [r for r in (ratio_of(a, b) for a, b in zip(ours[1], figures)) if r]
            entry["spread"]["ratio"] = [min(each), max(each)] if each else None
        found.append(entry)
    rivals = [e for e in found if (e["peer"] in row.against if row.against else not e["limit"])]
    if row.target is not None and rivals:
        pick = min if row.better == "lower" else max
        best = pick(rivals, key=lambda e: e["theirs"])
        best["target"] = row.target
        if best["ratio"] is not None:
            best["reached"] = best["ratio"] <= row.target if row.better == "lower" else best["ratio"] >= row.target
    if not found and ours:
        found.append({"name": row.name, "unit": row.unit, "better": row.better, "ours": statistics.median(ours[1]),
                      "peer": None, "variant": "", "theirs": None, "ratio": None, "target": None, "reached": None,
                      "rounds": len(ours[1]), "limit": False,
                      "spread": {"ours": [min(ours[1]), max(ours[1])], "theirs": None, "ratio": None}})
    return found


# --- the table -------------------------------------------------------------------------------------------------------

def number(x):
    if x is None:
        return "-"
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        text = f"{x:.3g}"
        return f"{x:.0f}" if "e" in text else text
    return f"{x:.3g}" if abs(x) < 1e-3 else f"{x / 1e6:.3g}M" if abs(x) >= 1e6 else f"{x / 1e3:.3g}k"


def spread_text(pair):
    return f"{number(pair[0])}..{number(pair[1])}" if pair else ""


def table(report):
    """The report as text. Ratio is always ours/theirs."""
    heads = ("name", "unit", "ours", "(min..max)", "peer", "theirs", "(min..max)", "ratio", "wanted", "target", "rounds")
    lines, last = [heads], None
    for r in report["rows"]:
        sign = "<=" if r["better"] == "lower" else ">="
        peer = (r["peer"] or "none") + (f" ({r['variant']})" if r["variant"] else "")
        verdict = {None: "", True: "reached", False: "NOT REACHED"}[r["reached"]]
        first = r["name"] != last
        last = r["name"]
        lines.append((r["name"] if first else "", r["unit"] if first else "", number(r["ours"]) if first else "",
                      spread_text(r["spread"]["ours"]) if first else "", peer, number(r["theirs"]),
                      spread_text(r["spread"]["theirs"]), number(r["ratio"]),
                      f"{sign} {r['target']:g}" if r["target"] is not None else "limit" if r["limit"] else "",
                      verdict, str(r["rounds"])))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    right = {2, 5, 7, 10}
    text = []
    for i, line in enumerate(lines):
        text.append("  ".join(c.rjust(w) if k in right else c.ljust(w)
                              for k, (c, w) in enumerate(zip(line, widths))).rstrip())
        if i == 0:
            text.append("-" * len(text[0]))
    text.append("ratio = ours / theirs: for times and memory lower is better (below 1 weft is ahead), for rates higher"
                " is better (above 1 weft is ahead).")
    for m in report["missing"]:
        text.append(f"missing: {m['peer']}: {m['what']}: {m['why']}")
    return "\n".join(text)


def revision():
    try:
        got = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, text=True)
        return got.stdout.strip() or None
    except OSError:
        return None


def beside(suite, other, name):
    """Removes the peers from the suite, and adds the same programs of another build of weft to compare with."""
    every, figures = suite.sides, suite.rows

    def rows(context):
        return [Row(r.id, r.name, r.unit, r.better) for r in figures(context)]  # what is wanted is wanted against peers

    def sides(context):
        theirs = [s for s in every(other) if s.peer == OURS]
        for side in theirs:
            side.peer = name
        return [s for s in every(context) if s.peer == OURS] + theirs
    suite.rows, suite.sides = rows, sides


def measure(suite, context, rounds, scale, say):
    """Run a suite; returns its report, and the exception that ended it early (then the report holds what was measured until then), or None."""
    load = os.getloadavg()[0]
    rows, groups, sides = suite.rows(context), suite.groups(context), suite.sides(context)
    able, unable, missing = [], [], []
    try:
        for side in sides:
            why = side.missing()
            if why:
                missing.append({"peer": side.peer, "what": "all", "why": why})
                continue
            able.append(side) # before it is prepared: finish() is also for one that could not be
            try:
                side.prepare()
            except Missing as problem:
                missing.append({"peer": side.peer, "what": "all", "why": str(problem)})
                unable.append(side)
        samples, notes, ended = take_turns(groups, [s for s in able if s not in unable], rounds, scale, say)
    finally:
        for side in able:
            side.finish()
    missing += [{"peer": p, "what": g, "why": w} for p, g, w in notes]
    peers, limits = [], set()
    for s in sides:
        if s.peer != OURS and s.peer not in peers:
            peers.append(s.peer)
        if s.limit:
            limits.add(s.peer)
    found = []
    for row in rows:
        found += judge(row, samples, peers, limits)
    return {"benchmark": suite.NAME, "title": suite.TITLE, "revision": revision(), "rounds": rounds,
            "quick": scale < 1, "load_before": round(load, 2), "machine": machine(), "rows": found, "missing": missing}, ended


def write(report, folder=OUT):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, report["benchmark"] + ".json")
    with open(path + ".part", "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)
    return path


def progress(text):
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K" + text)
        sys.stderr.flush()
