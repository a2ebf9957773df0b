#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft proxy, when the gateway lends the socket of a connection with short requests (src/cli/forward_direct.h). That a socket is lent shows in
/proc: it is then a descriptor of both nodes. Between hosts none is.

Usage: test_proxy_direct.py PATH-OF-WEFT CLUSTER, CLUSTER: "-n 2", or "--softverbs switch:2"
"""
import contextlib
import hashlib
import os
import signal
import socket
import sys
import threading
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from test_proxy import CLUSTER, LIMIT, PATTERN, Proxy, exactly, reset, until  # noqa: E402

ONE_HOST = "--softverbs" not in CLUSTER
LENDS = 16  # DIRECT_AFTER


def sockets(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {one for one in found if one.startswith("socket:")}


@unittest.skipUnless(os.path.isdir("/proc/self/fd"), "no /proc")
class Direct(Proxy):
    def setUp(self):
        self.command, self.at = self.proxy("--via", "1")
        self.pids = [self.pid_of(0), self.pid_of(1)]

    def lent(self):
        return len(sockets(self.pids[0]) & sockets(self.pids[1]))

    def exchange(self, s, times=4 * LENDS):
        for i in range(times):
            piece = b"%08d" % i * (1 + i % 100)
            s.sendall(piece)
            self.assertEqual(exactly(s, len(piece)), piece)

    def is_lent(self, count=1):
        until(f"{count} sockets are lent", lambda: self.lent() == (count if ONE_HOST else 0))

    def open(self, port=None):
        """A connection whose socket is lent. With a port of this test, both its ends."""
        s = self.socks(self.at, port)
        s.settimeout(LIMIT)
        before = self.lent()
        if not port:
            self.exchange(s)
            self.is_lent(before + 1)
            return s
        far = self.listener.accept()[0]
        far.settimeout(LIMIT)
        for i in range(4 * LENDS):
            for one, other in ((s, far), (far, s)):
                one.sendall(b"%03d" % i)
                self.assertEqual(exactly(other, 3), b"%03d" % i)
        self.is_lent(before + 1)
        return s, far

    def own(self):
        return self.open(self.listener.getsockname()[1])

    def test_few_requests(self):
        with self.socks(self.at) as s:
            self.exchange(s, LENDS - 2)
            self.assertEqual(self.lent(), 0)

    def test_ends(self):
        for _ in range(3):
            with self.open() as s:
                s.sendall(b"last")
                s.shutdown(socket.SHUT_WR)
                self.assertEqual(exactly(s, 100), b"lastend")
            self.is_lent(0)
        s, far = self.own()
        far.sendall(b"last")
        far.shutdown(socket.SHUT_WR)
        self.assertEqual(exactly(s, 100), b"last")
        s.sendall(b"more")
        s.close()
        self.assertEqual(exactly(far, 100), b"more")
        far.close()
        self.is_lent(0)

    def test_large_and_small(self):
        """A large piece goes through the rings, and small ones afterwards by the socket again."""
        data = (PATTERN * 30)[:3_000_001]
        with self.open() as s:
            for _ in range(5):
                sender = threading.Thread(target=s.sendall, args=(data,))
                sender.start()
                self.assertEqual(hashlib.sha256(exactly(s, len(data))).digest(), hashlib.sha256(data).digest())
                sender.join()
                self.is_lent(0)
                self.exchange(s)
                self.is_lent(1)
            s.sendall(data[:200_000])
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(exactly(s, 300_000), data[:200_000] + b"end")
        self.is_lent(0)

    def test_nobody_reads(self):
        """What one end does not read waits, in both directions at once, and nothing of it is lost."""
        data = PATTERN * 60  # more than the sockets and rings hold
        s, far = self.own()
        senders = [threading.Thread(target=one.sendall, args=(data,)) for one in (s, far)]
        for one in senders:
            one.start()
        for one in (far, s):
            self.assertEqual(exactly(one, len(data)), data)
        for one in senders:
            one.join()
        s.close()
        self.assertEqual(far.recv(1), b"")
        far.close()

    def test_reset(self):
        for first in (0, 1):
            ends = self.own()
            reset(ends[first])
            with self.assertRaises(ConnectionResetError):
                self.assertEqual(ends[1 - first].recv(1), b"something")
            ends[1 - first].close()
            self.is_lent(0)

    def test_many(self):
        """More connections than sockets are lent at a time."""
        all_ = [self.socks(self.at) for _ in range(80)]
        for s in all_:
            self.exchange(s)
        self.is_lent(64)
        for s in all_:
            self.exchange(s, 4)
            s.close()
        self.is_lent(0)

    def test_gateway_stops(self):
        """Requests need no gateway while it has lent the socket."""
        with self.open() as s:
            if ONE_HOST:
                processes.stop(self.pids[1])
            self.exchange(s)
            os.kill(self.pids[1], signal.SIGCONT)
            self.exchange(s)
        self.is_lent(0)

    def test_gateway_dies(self):
        s, far = self.own()
        os.kill(self.pids[1], signal.SIGKILL)
        with self.assertRaises(ConnectionResetError):
            self.assertEqual(s.recv(1), b"something")
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(far.recv(1), b"")
        s.close()
        far.close()
        self.down()
        self.command.wait(LIMIT)
        self.up()

    def test_proxy_ends(self):
        s, far = self.own()
        self.command.kill()
        for one in (s, far):
            with self.assertRaises(ConnectionResetError):
                self.assertEqual(one.recv(1), b"something")
            one.close()
        self.is_lent(0)

    def test_proxy_dies(self):
        s, far = self.own()
        os.kill(self.pids[0], signal.SIGKILL)
        for one in (s, far):
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(one.recv(1), b"")
            one.close()
        self.down()
        self.up()


if __name__ == "__main__":
    del sys.argv[1:3]
    unittest.main()
