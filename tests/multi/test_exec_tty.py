#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft exec --tty: shells, editors and keys, the window's size, and what the terminal is like after each end.

Usage: test_exec_tty.py PATH-OF-WEFT CLUSTER [TEST...], CLUSTER as in test_standing.py
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

import test_standing
from test_standing import LIMIT, WEFT, Standing, Up, marked, until

CTRL_C, CTRL_D, CTRL_Z, ESC = b"\x03", b"\x04", b"\x1a", b"\x1b"


class Terminal:
    """A terminal of 31 rows and 97 columns, with a process in it that leads its session, as a shell in a window does."""

    def __init__(self, argv, env):
        self.ours, self.theirs = pty.openpty()
        self.size(31, 97)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.theirs, fd)
            for number in (signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], argv, env)

    def size(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, data):
        os.write(self.ours, data)

    def read(self, what=None, limit=LIMIT):
        """Reads until the regular expression matches; returns the match, and forgets what is before its end."""
        end = time.monotonic() + limit
        while True:
            m = what and re.search(what, self.seen)
            if m:
                self.seen = self.seen[m.end():]
                return m
            if not select.select([self.ours], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"waited in vain for {what}: {self.seen[-2000:]}")
            self.seen += os.read(self.ours, 65536)

    def raw(self):
        return not termios.tcgetattr(self.theirs)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def wait(self):
        """The exit status, or -N for signal N. Reads what is still written, so that nobody waits to write it."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            pid, how = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(how)
            if select.select([self.ours], [], [], 0.02)[0]:
                self.seen += os.read(self.ours, 65536)
        raise AssertionError(f"it does not end: {self.seen[-2000:]}")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.ours)
        os.close(self.theirs)


class Base(Standing):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.env.update(TERM="xterm", PS1="$ ", ENV="")

    def terminal(self, *argv, options=()):
        t = Terminal([WEFT, "exec", "--on", "1", "--tty", *options, "--", *argv], self.env)
        self.addCleanup(t.close)
        return t

    def ended(self, t, status):
        """The command ends with this status, and the terminal is as it was."""
        self.assertEqual(t.wait(), status, t.seen[-2000:])
        until("the terminal has its settings back", lambda: termios.tcgetattr(t.theirs) == t.before)


class Tty(Up, Base):
    def test_terminal_of_the_program(self):
        """The program's three descriptors are one terminal, its session's; size and type of the terminal are right; the exit status
        arrives."""
        t = self.terminal("sh", "-c", "for i in 0 1 2; do test -t $i || echo $i is none; done; stty size </dev/tty; echo $TERM; "
                                      "ps -o pgid=,sid=,tpgid= -p $$ | tr -s ' '; exit 7")
        self.assertTrue(t.read(rb"^31 97\r\nxterm\r\n *(\d+) \1 \1\r\n"))
        self.ended(t, 7)
        t = self.terminal("sh", "-c", "echo $TERM", options=("--env", "TERM=dumb", "--on", "2"))
        self.assertTrue(t.read(rb"^dumb\r\n"))
        self.ended(t, 0)
        t = self.terminal("sh", "-c", "kill -9 $$")
        self.ended(t, 128 + signal.SIGKILL)
        t = self.terminal("sleep", "610", options=("--timeout", "300ms"))
        self.ended(t, 124)

    def test_window(self):
        """The size follows: the program gets SIGWINCH, and reads the new size; also many changes at once."""
        t = self.terminal("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
        t.read(rb"ready\r\n")
        t.size(40, 120)
        t.read(rb"40 120\r\n")
        for i in range(50):
            t.size(10 + i, 200)
        t.read(rb"59 200\r\n")
        t.type(CTRL_C)
        self.ended(t, 128 + signal.SIGINT)

    def test_shell(self):
        """A shell with job control: its prompt, an echo, Ctrl-C and Ctrl-Z, which reach its programs and not the shell, fg, Ctrl-D."""
        t = self.terminal("bash", "--norc", "--noprofile", "-i")
        t.read(rb"\$ ")
        self.assertTrue(t.raw())
        t.type(b"echo $((6*7))\r")
        t.read(rb"echo \$\(\(6\*7\)\)\r\n(\x1b\[\?2004l\r)?42\r\n")
        t.type(b"sleep 611\r")
        until("it runs", lambda: self.sleepers("611"))
        t.type(CTRL_C)
        t.read(rb"\^C")
        until("the key has ended it", lambda: not self.sleepers("611"))
        t.type(b"echo status $?\r")
        t.read(rb"status 130\r\n")
        t.type(b"sleep 612\r")
        pid = until("it runs", lambda: self.sleepers("612"))[0]
        t.type(CTRL_Z)
        t.read(rb"Stopped.*sleep 612")
        until("it is stopped", lambda: test_standing.processes.state(pid) == "T")
        t.type(b"fg\r")
        until("it goes on", lambda: test_standing.processes.state(pid) == "S")
        t.type(CTRL_C)
        until("the key has ended it", lambda: not self.sleepers("612"))
        t.type(b"exit 9\r")
        self.ended(t, 9)

    def test_end_of_input(self):
        t = self.terminal("cat")
        t.type(b"line\r")
        t.read(rb"line\r\nline\r\n")
        t.type(CTRL_D)
        self.ended(t, 0)

    def test_bytes(self):
        """All that a program writes arrives unchanged, and so do 100,000 keys, although the program reads them slower than they are
        typed."""
        t = self.terminal("sh", "-c", "stty raw -echo; echo go; head -c 100000 | sha256sum; head -c 1000000 /dev/zero | tr '\\0' x; echo end")
        t.read(rb"go\n")
        keys = bytes(i % 256 for i in range(100000))
        for i in range(0, len(keys), 1000):
            t.type(keys[i:i + 1000])
            while select.select([t.ours], [], [], 0)[0]:
                t.seen += os.read(t.ours, 65536)
        sum_ = subprocess.run(["sha256sum"], input=keys, capture_output=True, check=True, timeout=LIMIT).stdout[:64]
        t.read(sum_ + rb"  -\n")
        t.read(rb"^x{1000000}end\n")
        self.ended(t, 0)

    def test_pager(self):
        """A program that draws: it knows the size, answers single keys, and draws anew when the window changes."""
        t = self.terminal("sh", "-c", "seq 1000 | less")
        t.read(rb"\b30\r\n.*:")
        t.type(b" ")
        t.read(rb"\b60\r\n.*:")
        time.sleep(0.5)  # before it waits for a key, less notes a new size, and draws at the next key only
        t.size(11, 80)
        t.read(rb"\b40\r\n.*:")
        t.type(b"q")
        self.ended(t, 0)

    def test_editor(self):
        """An editor writes a file."""
        path = os.path.join(self.tmp.name, "edited")
        t = self.terminal("vi", "-u", "NONE", path)
        t.read(rb"edited")
        t.type(b"ione line" + ESC)
        time.sleep(1.1)  # vi waits that long whether a key with that beginning follows
        t.type(b":wq\r")
        self.ended(t, 0)
        with open(path, encoding="utf-8") as f:
            self.assertEqual(f.read(), "one line\n")

    def test_signals(self):
        """However weft is asked to end, the terminal is restored, and the program ends with all of its terminal's foreground."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            # Both ignore what a terminal and its end send.
            t = self.terminal("bash", "--norc", "-ic", "trap '' INT TERM HUP QUIT; set -m; sleep 613; sleep 613")
            until("it runs in raw mode", lambda t=t: t.raw() and self.sleepers("613"))
            os.kill(t.pid, number)
            self.ended(t, 128 + number)
            until("the program has ended", lambda: not self.sleepers("613"))

    def test_killed(self):
        """kill -9 of weft: a helper restores the terminal; a shell that has set it meanwhile keeps its settings."""
        t = self.terminal("bash", "--norc", "-ic", "trap '' HUP; set -m; sleep 614; sleep 614")
        until("it runs in raw mode", lambda: t.raw() and self.sleepers("614"))
        os.kill(t.pid, signal.SIGKILL)
        self.ended(t, -signal.SIGKILL)
        until("the program has ended", lambda: not self.sleepers("614"))
        t = self.terminal("sleep", "615")
        until("it runs in raw mode", lambda: t.raw() and self.sleepers("615"))
        os.kill(t.pid, signal.SIGSTOP)
        other = termios.tcgetattr(t.theirs)
        other[3] |= termios.ICANON
        termios.tcsetattr(t.theirs, termios.TCSANOW, other)
        other = termios.tcgetattr(t.theirs)
        os.kill(t.pid, signal.SIGKILL)
        self.assertEqual(t.wait(), -signal.SIGKILL)
        until("the helper is gone", lambda: not self.helpers())
        self.assertEqual(termios.tcgetattr(t.theirs), other)

    def helpers(self):
        found = []
        for pid in marked():
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
                    found += [pid] * (f.read().strip() == "weft-terminal")
            except OSError:
                pass
        return found

    def test_stopped_and_continued(self):
        """After a stop, when a shell has set the terminal, raw mode and the size come back."""
        t = self.terminal("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
        t.read(rb"ready\r\n")
        os.kill(t.pid, signal.SIGSTOP)
        termios.tcsetattr(t.theirs, termios.TCSANOW, t.before)
        t.size(20, 50)
        os.kill(t.pid, signal.SIGCONT)
        t.read(rb"20 50\r\n")
        self.assertTrue(t.raw())
        t.type(CTRL_C)
        self.ended(t, 128 + signal.SIGINT)

    def test_weft_kill(self):
        t = self.terminal("sleep", "616")
        until("raw mode", t.raw)
        job = [j["job"] for j in test_standing.json.loads(self.weft("ps", "--json").stdout) if j["command"] == "sleep 616"]
        self.weft("kill", str(job[0]))
        self.ended(t, 128 + signal.SIGTERM)

    def test_refused(self):
        """No terminal, several hosts, words that exclude each other, a program that does not exist: sentences, and no raw mode."""
        p = self.exec("--on", "1", "--tty", "--", "true", code=255)
        self.assertIn("standard input is not a terminal", p.stderr)
        t = self.terminal("true", options=("--on", "all"))
        t.read(rb"--tty is for one node, not for 3: choose one with --on\r\n")
        self.ended(t, 255)
        t = self.terminal("no-such-program")
        t.read(rb"there is no program 'no-such-program'.*\r\n")
        self.ended(t, 127)
        for more in (["--detach"], ["--tag"], ["--json"], ["--stdin", "/dev/null"]):
            self.assertIn("cannot be used with", self.exec("--tty", *more, "--", "true", code=2).stderr)


class Lost(Base):
    """The node that runs the program dies, or the node to which the command is connected: the command prints a message on a line of its
    own."""

    def lost(self, node, sentence):
        self.up()
        t = self.terminal("sleep", "617")
        until("it runs in raw mode", lambda: t.raw() and self.sleepers("617"))
        os.kill(self.status()["nodes"][node]["pid"], signal.SIGKILL)
        t.read(sentence)
        self.ended(t, 255)
        until("the program has ended", lambda: not self.sleepers("617"))

    def test_node(self):
        self.lost(1, rb"weft exec: [^\r\n]*node 1[^\r\n]*\r\n")

    def test_control_node(self):
        self.lost(0, rb"weft exec: the node of the cluster on this host has ended[^\r\n]*\r\n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
