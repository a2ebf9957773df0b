#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft proxy, weft publish: programs that have no network reach servers through a gateway. The programs run in a network namespace without interface,
where the kernel allows that; the servers are this test's, on loopback, which rules of the gateway allow.

Usage: test_proxy.py PATH-OF-WEFT CLUSTER, CLUSTER: "-n 2", or "--softverbs switch:2"
"""
import base64
import concurrent.futures
import contextlib
import functools
import hashlib
import http.server
import json
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
import processes  # noqa: E402
from processes import alive, clean_env, patience  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
CLUSTER = sys.argv[2].split()
LIMIT = patience(60)
until = functools.partial(processes.until, limit=LIMIT)
BIG = 20_000_003
PATTERN = hashlib.sha256(b"weft").digest() * 4096
OWN_NET = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
BARE = ["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]


def can_unshare():
    return shutil.which("unshare") and shutil.which("ip") and subprocess.run(
        [*OWN_NET, *BARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def exactly(s, count):
    """Reads this many bytes from a socket; fewer if its stream ends before."""
    got = bytearray()
    while len(got) < count and (data := s.recv(min(count - len(got), 1 << 20))):
        got += data
    return bytes(got)


class Pages(http.server.BaseHTTPRequestHandler):
    """/small, /big; /denied leads to a port that no rule allows; POST tells how many bytes came, and their hash."""
    protocol_version = "HTTP/1.1"

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_):
        pass

    def answer(self, body, code=200, **headers):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.seen.append((self.requestline, dict(self.headers)))
        if self.path == "/small":
            self.answer(b"small\n")
        elif self.path == "/denied":
            self.answer(b"", 302, Location=f"http://127.0.0.1:{self.server.denied}/small")
        elif self.path == "/big":
            self.answer((PATTERN * (BIG // len(PATTERN) + 1))[:BIG])
        elif self.path == "/endless":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(PATTERN)
        else:
            self.answer(b"nothing\n", 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(f"{len(body)} {hashlib.sha256(body).hexdigest()}\n".encode())


class Echo(threading.Thread):
    """Echoes on all its connections; at the end of what it receives it sends "end" and ends, too."""

    def __init__(self, listener=None):
        super().__init__(daemon=True)
        self.listener = listener or socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.stopped = False
        self.port = self.listener.getsockname()[1]
        self.most = 0
        self.start()

    def run(self):
        poll = selectors.DefaultSelector()
        poll.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in poll.select():
                if key.fileobj is self.listener and self.stopped:
                    return
                if key.fileobj is self.listener:
                    poll.register(self.listener.accept()[0], selectors.EVENT_READ)
                    self.most = max(self.most, len(poll.get_map()) - 1)
                    continue
                try:
                    data = key.fileobj.recv(65536)
                    key.fileobj.sendall(data or b"end")
                except OSError:
                    data = b""
                if not data:
                    poll.unregister(key.fileobj)
                    key.fileobj.close()


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


class Proxy(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory(prefix="weft-proxy-")
        cls.addClassCleanup(cls.tmp.cleanup)
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        cls.server.seen = []
        cls.denied = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        cls.denied.seen = []
        cls.server.denied = cls.denied.server_address[1]
        for s in (cls.server, cls.denied):
            threading.Thread(target=s.serve_forever, daemon=True).start()
            cls.addClassCleanup(s.shutdown)
        cls.port = cls.server.server_address[1]
        cls.url = f"http://127.0.0.1:{cls.port}"
        cls.echo = Echo()
        cls.six = None
        with contextlib.suppress(OSError):  # without IPv6
            cls.six = Echo(socket.create_server(("::1", cls.echo.port), family=socket.AF_INET6))
        cls.listener = socket.create_server(("127.0.0.1", 0))  # of a server that a test plays itself
        cls.addClassCleanup(cls.listener.close)
        cls.env = clean_env(XDG_RUNTIME_DIR=cls.tmp.name, HOME=cls.tmp.name, WEFT_LIVENESS="30s", WEFT_POOL="256M", no_proxy="")
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
            cls.env.pop(name, None)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))  # of the nodes, too
        cls.bare = [*OWN_NET, *BARE] if can_unshare() else []
        cls.up()
        cls.addClassCleanup(cls.down)

    @classmethod
    def up(cls):
        subprocess.run([WEFT, "up", *CLUSTER, "--deny", "deny.invalid", "--allow", f"127.0.0.1:{cls.port}", "--allow",
                        f"127.0.0.1:{cls.echo.port}", "--allow", f"[::1]:{cls.echo.port}", "--allow", f"127.0.0.1:{cls.listener.getsockname()[1]}"],
                       env=cls.env, check=True, timeout=LIMIT, stdin=subprocess.DEVNULL, capture_output=True)

    @classmethod
    def down(cls):
        subprocess.run([WEFT, "down"], env=cls.env, check=False, timeout=LIMIT, capture_output=True)

    def run_it(self, *args, code=0, proxy=(), **more):
        """Runs a program by `weft proxy --`, without network."""
        p = subprocess.run([*self.bare, WEFT, "proxy", *proxy, "--", *args], capture_output=True, timeout=LIMIT, check=False,
                           env=more.pop("env", self.env), stdin=None if "input" in more else subprocess.DEVNULL, **more)
        if code is not None and p.returncode != code:
            self.fail(f"{args}: {p.returncode}\n{p.stdout[-1000:]}\n{p.stderr[-3000:].decode()}\n{self.log()[-2000:]}")
        return p

    def curl(self, *args, **more):
        return self.run_it("curl", "-sS", "--max-time", f"{LIMIT:.0f}", *args, **more)

    def log(self):
        with open(os.path.join(self.tmp.name, "weft/default/log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def proxy(self, *args):
        """Starts a proxy that stays. Returns its process and its address."""
        p = subprocess.Popen([WEFT, "proxy", "--listen", "127.0.0.1:0", *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        def end():
            p.kill()
            p.communicate()
        self.addCleanup(end)
        line = p.stdout.readline().strip()
        if not line:
            self.fail(p.stderr.read())
        host, port = line.rsplit(":", 1)
        return p, (host, int(port))

    def status(self, *args):
        return subprocess.run([WEFT, "status", *args], env=self.env, capture_output=True, text=True, check=True, timeout=LIMIT).stdout

    def pid_of(self, node):
        p = subprocess.run([WEFT, "status", "--json"], env=self.env, capture_output=True, text=True, check=True, timeout=LIMIT)
        return next(n["pid"] for n in json.loads(p.stdout)["nodes"] if n["place"] == node)

    def talk(self, address, *pieces):
        """Sends these bytes to the proxy. Returns what it answers until it closes the connection, or waits for more."""
        with socket.create_connection(address, timeout=LIMIT) as s:
            for piece in pieces:
                s.sendall(piece)
            s.shutdown(socket.SHUT_WR)
            got = b""
            while data := s.recv(65536):
                got += data
            return got

    def socks(self, address, port=None, host=b"\x01\x7f\0\0\x01"):
        s = socket.create_connection(address, timeout=LIMIT)
        s.sendall(b"\x05\x01\0" + b"\x05\x01\0" + host + struct.pack(">H", port or self.echo.port))
        self.assertEqual(exactly(s, 2), b"\x05\0")
        self.assertEqual(exactly(s, 10)[:2], b"\x05\0")
        return s


    def resets(self, connect):
        """A reset of one end is a reset at the other one, in both directions."""
        for first in (0, 1):
            ends = [connect()]
            ends.append(self.listener.accept()[0])
            for i in (0, 1):  # the connection is open from end to end
                ends[i].sendall(b"x" * 1000)
                self.assertEqual(exactly(ends[1 - i], 1000), b"x" * 1000)
            reset(ends[first])
            ends[1 - first].settimeout(LIMIT)
            with self.assertRaises(ConnectionResetError):
                self.assertEqual(ends[1 - first].recv(1), b"something")
            ends[1 - first].close()


class Programs(Proxy):
    def test_it_has_no_network(self):
        """Else the other tests would prove nothing."""
        if not self.bare:
            self.skipTest("this user may not make namespaces")
        p = subprocess.run([*self.bare, "curl", "-sS", "--max-time", "5", self.url + "/small"], capture_output=True, check=False, env=self.env)
        self.assertEqual(p.returncode, 7)

    @unittest.skipUnless(shutil.which("curl"), "needs curl")
    def test_curl(self):
        self.assertEqual(self.curl(self.url + "/small").stdout, b"small\n")
        request, headers = self.server.seen[-1]
        self.assertEqual((request, headers["Host"], headers["Connection"]), ("GET /small HTTP/1.1", f"127.0.0.1:{self.port}", "close"))
        self.assertFalse([h for h in headers if h.lower().startswith("proxy")])
        for how in (["--proxytunnel"], ["--proxy", "socks5h://"], ["--proxy", "socks5://"]):
            script = f'exec curl -sS {" ".join(how[:1])} {how[1] + "${all_proxy#*//}" if how[1:] else ""} "$@"'
            for name in ("127.0.0.1", "localhost"):
                url = f"http://{name}:{self.port}/small"
                p = self.run_it("sh", "-c", script, "sh", "-4", url)
                self.assertEqual(p.stdout, b"small\n", (how, name))
        # Several requests on one connection: through a tunnel, which the proxy does not look into.
        urls = [self.url + "/small"] * 20
        self.assertEqual(self.curl("--proxytunnel", *urls).stdout, b"small\n" * 20)

    @unittest.skipUnless(shutil.which("curl"), "needs curl")
    def test_large(self):
        big = hashlib.sha256((PATTERN * (BIG // len(PATTERN) + 1))[:BIG]).hexdigest()
        for how in ([], ["--proxytunnel"]):
            self.assertEqual(hashlib.sha256(self.curl(*how, self.url + "/big").stdout).hexdigest(), big)
        body = PATTERN * 100 + b"end"
        p = self.curl("--data-binary", "@-", "-H", "Expect:", self.url + "/post", input=body)
        self.assertEqual(p.stdout.decode(), f"{len(body)} {hashlib.sha256(body).hexdigest()}\n")

    def test_python(self):
        script = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1]).read())"
        self.assertEqual(self.run_it(sys.executable, "-c", script, self.url + "/small").stdout, b"b'small\\n'\n")

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_git(self):
        work = os.path.join(self.tmp.name, "work")
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", "-c", "init.defaultBranch=main"]
        run = functools.partial(subprocess.run, check=True, capture_output=True, env=self.env, timeout=LIMIT)
        run([*git, "init", work])
        with open(os.path.join(work, "file"), "w", encoding="ascii") as f:
            f.write("content\n")
        run([*git, "-C", work, "add", "file"])
        run([*git, "-C", work, "commit", "-m", "one"])
        run([*git, "-C", work, "update-server-info"])
        old = Pages.do_GET

        def serve(handler):
            path = os.path.join(work, ".git", handler.path.split("?")[0].removeprefix("/git/"))
            if handler.path.startswith("/git/") and os.path.isfile(path):
                with open(path, "rb") as f:
                    handler.answer(f.read())
            else:
                old(handler)
        Pages.do_GET = serve
        self.addCleanup(setattr, Pages, "do_GET", old)
        there = os.path.join(self.tmp.name, "clone")
        self.run_it("git", "clone", self.url + "/git/", there)
        with open(os.path.join(there, "file"), encoding="ascii") as f:
            self.assertEqual(f.read(), "content\n")

    def test_exit_status(self):
        self.run_it("sh", "-c", "exit 7", code=7)
        self.run_it("sh", "-c", "kill -TERM $$", code=143)
        self.assertIn(b"no such", self.run_it("no-such-program", code=127).stderr.lower())
        env = {k: v for k, v in self.env.items() if k != "no_proxy"}
        out = self.run_it("env", env=env).stdout.decode()
        port = re.search(r"(?m)^http_proxy=http://127\.0\.0\.1:(\d+)$", out)[1]
        for line in (f"all_proxy=socks5h://127.0.0.1:{port}", f"HTTPS_PROXY=http://127.0.0.1:{port}", "no_proxy=localhost,127.0.0.1,::1"):
            self.assertIn(line + "\n", out)
        for name in ("no_proxy", "NO_PROXY"):  # the user's own, of any length
            none = ",".join(f"host{i}.invalid" for i in range(500))
            out = self.run_it("env", env=dict(env, **{name: none})).stdout.decode()
            for line in (f"no_proxy={none}", f"NO_PROXY={none}"):
                self.assertIn(line + "\n", out)

    def test_signal_at_the_start(self):
        """A signal that comes as soon as `weft proxy` catches it reaches the command, even if that is only being started."""
        for _ in range(15):
            p = subprocess.Popen([WEFT, "proxy", "--", "sleep", "600"], env=self.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
            self.addCleanup(p.communicate)
            self.addCleanup(p.kill)
            def catches():
                with open(f"/proc/{p.pid}/status", encoding="ascii") as f:
                    return int(re.search(r"(?m)^SigCgt:\s+(\w+)", f.read())[1], 16) >> (signal.SIGTERM - 1) & 1
            deadline = time.monotonic() + LIMIT
            while not catches():
                self.assertLess(time.monotonic(), deadline)
            p.terminate()
            self.assertEqual(p.wait(LIMIT), 143)


class Rules(Proxy):
    @unittest.skipUnless(shutil.which("curl"), "needs curl")
    def test_denied(self):
        denied, before = self.server.denied, len(self.denied.seen)
        for host in ("127.0.0.1", "localhost", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "0x7f.1", "[::127.0.0.1]", "169.254.169.254"):
            p = self.curl("-w", "%{http_code}", f"http://{host}:{denied}/small")
            self.assertRegex(p.stdout.decode(), r"(?s)a default rule.*403$", host)
            # Without a tunnel's answer there is nothing but an error.
            self.assertNotEqual(self.curl("--proxytunnel", f"http://{host}:{denied}/small", code=None).returncode, 0)
        # By redirect.
        self.assertEqual(self.curl("-L", "-w", "%{http_code}", "-o", "/dev/null", self.url + "/denied").stdout, b"403")
        self.assertEqual(len(self.denied.seen), before)
        until("the denied one is logged", lambda: f"refused to connect to localhost port {denied} (127.0.0.1:{denied}) for node 0" in self.log())

    def test_words(self):
        def weft(*args, code):
            p = subprocess.run([WEFT, "proxy", *args], env=self.env, capture_output=True, text=True, timeout=LIMIT, check=False)
            self.assertEqual(p.returncode, code, p.stderr)
            return p.stderr
        self.assertIn("there is no host or node 'nowhere'", weft("--via", "nowhere", code=1))
        self.assertIn("write ADDRESS:PORT", weft("--listen", "here", code=2))
        self.assertIn("write -- before a command", weft("curl", code=2))
        self.assertIn("cluster 'other' is not up", weft("--cluster", "other", code=1))
        self.assertIn("no such file", weft("--auth", "/no/such", code=1).lower())
        self.assertIn("--auth /: Is a directory", weft("--auth", "/", code=1))
        self.assertIn("no command after --", weft("--", code=2))
        self.assertIn("no command after --", weft("--via", "1", "--", code=2))
        self.assertIn("`weft status` lists the proxies", weft("--end", "9", code=1))
        self.assertNotIn("warning", weft("--listen", "localhost:0", "--", "true", code=0))
        self.assertIn("warning: everybody who can connect", weft("--listen", "0.0.0.0:0", "--", "true", code=0))
        taken = socket.create_server(("127.0.0.1", 0))
        self.assertIn("--listen 127.0.0.1", weft("--listen", f"127.0.0.1:{taken.getsockname()[1]}", code=1))
        taken.close()
        up = subprocess.run([WEFT, "up", "-n", "1", "--cluster", "x", "--allow", "10.0.0.0/99"], env=self.env, capture_output=True, text=True,
                            timeout=LIMIT, check=False)
        self.assertNotEqual(up.returncode, 0)
        self.assertIn("WEFT_NET_RULES", up.stderr)


class Talk(Proxy):
    def test_password(self):
        path = os.path.join(self.tmp.name, "auth")
        with open(path, "w", encoding="ascii") as f:
            f.write("me@home:a:b/c\n")
        _, at = self.proxy("--auth", path, "--via", "1")
        user, password = b"me@home", b"a:b/c"
        def words(user, password):
            return b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password
        to = b"\x05\x01\0\x01\x7f\0\0\x01" + struct.pack(">H", self.echo.port)
        self.assertEqual(self.talk(at, b"\x05\x01\x00"), b"\x05\xff")  # without a password
        right = self.talk(at, b"\x05\x02\x00\x02" + words(user, password) + to + b"hello")
        self.assertEqual((right[:6], right[14:]), (b"\x05\x02\x01\0\x05\0", b"helloend"))
        for pair in ((user, b"wrong"), (b"me", password), (user, password + b"x"), (user, password[:-1]), (user + b"\0", password), (b"", b"")):
            self.assertEqual(self.talk(at, b"\x05\x01\x02" + words(*pair) + to + b"hello"), b"\x05\x02\x01\x01", pair)
        connect = f"CONNECT 127.0.0.1:{self.echo.port} HTTP/1.1\r\nHost: x\r\n".encode()
        basic = b"Proxy-Authorization: Basic " + base64.b64encode(user + b":" + password) + b"\r\n\r\n"
        self.assertIn(b" 407 ", self.talk(at, connect + b"\r\n"))
        self.assertIn(b" 407 ", self.talk(at, connect + basic.replace(b"Basic ", b"Basic A")))
        self.assertTrue(self.talk(at, connect + basic + b"hello").endswith(b"\r\n\r\nhelloend"))
        if shutil.which("curl"):
            self.assertEqual(self.curl(self.url + "/small", proxy=("--auth", path)).stdout, b"small\n")
            self.assertEqual(self.run_it("sh", "-c", 'curl -sS -x "$all_proxy" "$1"', "sh", self.url + "/small", proxy=("--auth", path)).stdout,
                             b"small\n")

    def test_half_close_and_pieces(self):
        _, at = self.proxy()
        to = b"\x05\x01\0" + b"\x05\x01\0\x03\x09127.0.0.1" + struct.pack(">H", self.echo.port) + b"hello"
        got = self.talk(at, *(bytes([b]) for b in to))  # byte by byte
        self.assertEqual((got[:4], got[12:]), (b"\x05\0\x05\0", b"helloend"))
        with self.socks(at) as s:
            s.sendall(b"x" * 100_000)
            s.shutdown(socket.SHUT_WR)
            self.assertEqual(exactly(s, 100_003), b"x" * 100_000 + b"end")
        def moved():
            f = next(f for f in json.loads(self.status("--json"))["forwards"] if f["address"].endswith(f":{at[1]}"))
            return [f[name] for name in ("kind", "gateway", "connections", "open", "up_bytes", "down_bytes")] == [
                "proxy", 1, 2, 0, 100_005, 100_011]
        until("all is counted", moved)
        self.assertRegex(self.status(), rf"(?m)^proxy +127.0.0.1:{at[1]} +1 +- +no +0 +2 +0 ")

    def test_six(self):
        """SOCKS5 with an IPv6 address: a connection, and datagrams."""
        if not self.six:
            self.skipTest("no IPv6 here")
        _, at = self.proxy()
        to = b"\x04" + socket.inet_pton(socket.AF_INET6, "::1")
        with socket.create_connection(at, timeout=LIMIT) as s:
            s.sendall(b"\x05\x01\0" + b"\x05\x01\0" + to + struct.pack(">H", self.echo.port) + b"hello")
            self.assertEqual(exactly(s, 2), b"\x05\0")
            answer = exactly(s, 22)  # with the address of the gateway's socket
            self.assertEqual(answer[:20], b"\x05\0\0" + to)
            self.assertEqual(exactly(s, 5), b"hello")
        echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.addCleanup(echo.close)
        echo.bind(("::1", self.echo.port))
        echo.settimeout(LIMIT)
        control, relay = self.associate(at)
        client, head = self.udp(), b"\0\0\0" + to + struct.pack(">H", self.echo.port)
        client.sendto(head + b"question", relay)
        data, peer = echo.recvfrom(100)
        self.assertEqual(data, b"question")
        echo.sendto(b"answer", peer)
        self.assertEqual(client.recv(100), head + b"answer")
        control.close()

    def test_reset(self):
        _, at = self.proxy()
        self.resets(lambda: self.socks(at, self.listener.getsockname()[1]))

    def test_one_request(self):
        """Plain HTTP: a server gets only the first request of the client. What follows on the connection may be for another server, and
        contain a password."""
        _, at = self.proxy()
        second = b"GET http://other.invalid/ HTTP/1.1\r\nProxy-Authorization: Basic c2VjcmV0\r\nCookie: secret\r\n\r\n"
        for head, body, right in ((b"GET", b"", b""), (b"POST", b"Content-Length: 5\r\n\r\nhello", b"hello"),
                                  (b"POST", b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n", None),
                                  (b"POST", b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", b"5\n"),
                                  (b"POST", b"Transfer-Encoding: chunked\r\n\r\n00000000000000000000005\r\nhellox", None)):
            lines, _, body = (body or b"\r\n").partition(b"\r\n\r\n")
            right = body if right is None else right
            request = head + b" http://127.0.0.1:%d/ HTTP/1.1\r\n" % self.echo.port + lines + (b"\r\n\r\n" if lines else b"\r\n") + body
            got = self.talk(at, request + second)
            self.assertEqual(got.partition(b"\r\n\r\n")[2], right + b"end", request)
            for pieces in ((request, second), [bytes([b]) for b in request + second]):
                got = bytearray()
                with contextlib.suppress(OSError), socket.create_connection(at, timeout=LIMIT) as s:  # may be reset: see below
                    for piece in pieces:
                        s.sendall(piece)
                    s.shutdown(socket.SHUT_WR)
                    while data := s.recv(65536):
                        got += data
                self.assertTrue((right + b"end").startswith(got.partition(b"\r\n\r\n")[2]), (request, got))
        for lines in (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                      b"Content-Length: -1\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length:\r\n", b"Content-Length: 0x5\r\n",
                      b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: xchunked\r\n"):
            self.assertIn(b" 400 ", self.talk(at, b"POST http://127.0.0.1:%d/ HTTP/1.1\r\n" % self.echo.port + lines + b"\r\nhello"), lines)
        with socket.create_connection(at, timeout=LIMIT) as s:  # the server has answered, and stays: the client has to connect again
            s.sendall(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % self.echo.port)
            got = b""
            while b"\r\n\r\n" not in got:
                got += exactly(s, 1)
            s.sendall(second)
            with self.assertRaises(ConnectionResetError):
                s.recv(65536)

    def test_nonsense(self):
        _, at = self.proxy()
        for what, says in ((b"\x04\x01", b" 400 "), (b"hello\r\n\r\n", b" 400 "), (b"\x16\x03\x01", b" 400 "), (b"GET / HTTP/1.1\r\n\r\n", b" 400 "),
                           (b"GET ftp://x/ HTTP/1.1\r\n\r\n", b" 400 "), (b"GET http://a@b/ HTTP/1.1\r\n\r\n", b" 400 "),
                           (b"GET http://x:0/ HTTP/1.1\r\n\r\n", b" 400 "), (b"CONNECT x HTTP/1.1\r\n\r\n", b" 400 "),
                           (b"CONNECT x:99999 HTTP/1.1\r\n\r\n", b" 400 "), (b"GET http://x/ HTTP/2\r\n\r\n", b" 400 "),
                           (b"GET http://x/ HTTP/1.1\r\n folded: x\r\n\r\n", b" 400 "), (b"GET http://x/ HTTP/1.1\r\nno name\r\n\r\n", b" 400 "),
                           (b"CONNECT [::1]:80:90 HTTP/1.1\r\n\r\n", b" 400 "), (b"CONNECT [x]:80 HTTP/1.1\r\n\r\n", b" 400 "),
                           (b"GET\thttp://y/ http://x/ HTTP/1.1\r\n\r\n", b" 400 "),
                           (b"GET http://x/ HTTP/1.1\r\nA: \0\r\n\r\n", b" 400 "), (b"GET http://x/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", b" 400 "),
                           (b"GET http://x/ HTTP/1.1\r\n" + b"A: b\r\n" * 10000, b" 431 "), (b"\x05\0", b"\x05\xff"),
                           (b"\x05\x01\x07", b"\x05\xff"), (b"\x05\x01\0\x05\x02\0\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x07"),
                           (b"\x05\x01\0\x05\x04\0\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x07"), (b"\x05\x01\0\x05\x01\0\x05\x7f\0\0\x01\0\x50", b"\x05\0\x05\x08"),
                           (b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01\0\0", b"\x05\0\x05\x01"), (b"\x05\x01\0\x04\x01\0\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x01"),
                           (b"\x05\x01\0\x05\x01\0\x03\0\0\x50\0", b"\x05\0\x05\x01"), (b"\x05\x01\0\x05\x01\0\x03\x03a\0b\0\x50", b"\x05\0\x05\x01")):
            with contextlib.suppress(ConnectionError):
                self.assertIn(says, self.talk(at, what), what[:60])
        denied = b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01" + struct.pack(">H", self.server.denied)
        self.assertEqual(self.talk(at, denied)[:4], b"\x05\0\x05\x02")
        with self.socks(at) as s:  # and it still works
            s.sendall(b"x")
            self.assertEqual(exactly(s, 1), b"x")

    def associate(self, address, port=0):
        """A connection that asks for datagrams, and the address for them."""
        s = socket.create_connection(address, timeout=LIMIT)
        self.addCleanup(s.close)
        s.sendall(b"\x05\x01\0" + b"\x05\x03\0\x01\0\0\0\0" + struct.pack(">H", port))
        self.assertEqual(exactly(s, 2), b"\x05\0")
        answer = exactly(s, 10)
        self.assertEqual(answer[:4], b"\x05\0\0\x01")
        return s, (socket.inet_ntoa(answer[4:8]), struct.unpack(">H", answer[8:])[0])

    def udp(self, address="127.0.0.1", port=0):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(s.close)
        s.bind((address, port))
        s.settimeout(LIMIT)
        return s

    def test_datagrams(self):
        _, at = self.proxy("--via", "1")
        port = self.echo.port  # which a rule allows
        echo = self.udp(port=port)
        denied = self.udp("127.0.0.2")
        def answer():
            while True:
                data, peer = echo.recvfrom(65536)
                if data == b"stop":
                    return
                echo.sendto(data, peer)
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        four = b"\0\0\0\x01\x7f\0\0\x01" + struct.pack(">H", port)
        name = b"\0\0\0\x03\x09127.0.0.1" + struct.pack(">H", port)
        control, to = self.associate(at)
        self.assertEqual(to[0], "127.0.0.1")
        client = self.udp()
        for head in (four, name):
            for size in (0, 1, 512, 1472, 9000, 65000):
                data = os.urandom(size)
                client.sendto(head + data, to)
                self.assertEqual(client.recv(65536), four + data, (head, size))
        # Pieces of datagrams, nonsense, and a peer that a rule forbids: dropped. The next right one is answered.
        for wrong in (b"", b"\0", b"\0\0\0", b"\0\0\x01" + four[3:] + b"piece", b"\0\x01" + four[2:] + b"x", four[:9], b"\0\0\0\x05" + four[4:],
                      b"\0\0\0\x03\0\0\x50x", b"\0\0\0\x01\x7f\0\0\x01\0\0x", b"\0\0\0\x01\x7f\0\0\x02" + struct.pack(">H", denied.getsockname()[1]) + b"denied"):
            client.sendto(wrong, to)
        client.sendto(four + b"right", to)
        self.assertEqual(client.recv(65536), four + b"right")
        until("the denied one is logged", lambda: f"port {denied.getsockname()[1]} (127.0.0.2:" in self.log())
        denied.setblocking(False)
        self.assertRaises(BlockingIOError, denied.recv, 10)
        # A client without an association is not served; with one it is, and each client gets its own answers.
        other = self.udp()
        other.sendto(four + b"other", to)
        client.sendto(four + b"again", to)
        self.assertEqual(client.recv(65536), four + b"again")
        other.setblocking(False)
        self.assertRaises(BlockingIOError, other.recv, 10)
        other.settimeout(LIMIT)
        second, to = self.associate(at, other.getsockname()[1])
        for i in range(50):
            for s in (client, other):
                s.sendto(four + b"%d of %d" % (i, s.fileno()), to)
            for s in (client, other):
                self.assertEqual(s.recv(65536), four + b"%d of %d" % (i, s.fileno()))
        # Its connection ends: so does the association.
        control.close()
        until("the association has ended", lambda: not self.answers(client, four, to))
        other.sendto(four + b"goes on", to)
        self.assertEqual(other.recv(65536), four + b"goes on")
        second.close()
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"stop", ("127.0.0.1", port))
        thread.join(LIMIT)

    def answers(self, client, head, to):
        client.sendto(head + b"?", to)
        client.settimeout(0.2)
        try:
            return client.recv(65536)
        except TimeoutError:
            return None

    def test_thousand(self):
        """A thousand connections at once, and one that is not read beside them."""
        _, at = self.proxy()
        slow = self.socks(at, self.port)
        slow.sendall(f"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        every = [self.socks(at) for _ in range(1000)]
        for i, s in enumerate(every):
            s.sendall(b"%05d" % i)
        for i, s in enumerate(every):
            self.assertEqual(exactly(s, 5), b"%05d" % i)
        self.assertGreaterEqual(self.echo.most, 1000)
        for node in (0, 1):  # no thread for a connection
            self.assertLess(len(os.listdir(f"/proc/{self.pid_of(node)}/task")), 50)
        for s in (*every, slow):
            s.close()


class Publish(Proxy):
    def publish(self, *args):
        """Publishes a port that stays. Returns the process, and where the port listens."""
        p = subprocess.Popen([WEFT, "publish", *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True)
        def end():
            p.kill()
            p.communicate()
        self.addCleanup(end)
        line = p.stdout.readline().strip()
        if not line:
            self.fail(p.stderr.read())
        return p, ("127.0.0.1", int(line.rsplit(":", 1)[1]))

    def weft(self, *args, code=0):
        p = subprocess.run([WEFT, *args], env=self.env, capture_output=True, text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, code, p.stderr)
        return p.stdout if code == 0 else p.stderr

    def forwards(self):
        return {f["address"].rsplit(":", 1)[1]: f for f in json.loads(self.weft("status", "--json"))["forwards"]}

    def echoes(self, at):
        self.assertEqual(self.talk(at, b"hello"), b"helloend")

    def refused(self, at):
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(at, timeout=LIMIT).close()
            return False
        return True

    def test_ways(self):
        """Ports at either node that lead to either node; several at once, and what `weft status` shows about them."""
        echo = self.echo.port
        ways = [(("--to", f":{echo}", "127.0.0.1:0"), 1, 0), (("--to", f"1:{echo}", "0"), 0, 1), (("--via", "1", "--to", f"1:{echo}", "0"), 1, 1),
                (("--via", "0", "--to", f"0:{echo}", "[::1]:0"), 0, 0)]
        every = [(self.publish(*args)[1], gateway, target) for args, gateway, target in ways]
        for (host, port), gateway, target in every:
            at = ("::1" if target == gateway == 0 else host, port)
            self.echoes(at)
            with socket.create_connection(at, timeout=LIMIT) as s:
                f = self.forwards()[str(port)]
                self.assertEqual((f["kind"], f["gateway"], f["target"], f["to"], f["kept"]), ("publish", gateway, target, str(echo), False))
                until("both are counted", lambda: self.forwards()[str(port)]["connections"] == 2)
                self.assertEqual(self.forwards()[str(port)]["open"], 1)
                s.sendall(b"x" * 500_000)
                self.assertEqual(exactly(s, 500_000), b"x" * 500_000)
                def moved(port=port):
                    f = self.forwards()[str(port)]
                    return (f["up_bytes"], f["down_bytes"]) == (500_005, 500_008)
                until("all bytes are counted", moved)
        self.assertRegex(self.weft("status"), rf"(?m)^publish +127.0.0.1:{every[0][0][1]} +1 +0:{echo} +no ")

    def test_reset(self):
        _, at = self.publish("--to", f":{self.listener.getsockname()[1]}", "127.0.0.1:0")
        self.resets(lambda: socket.create_connection(at, timeout=LIMIT))

    def test_memory(self):
        """The rings of connections are counted as memory of the network, and are freed."""
        def network():
            return sum(n["pool_use"]["network"] for n in json.loads(self.weft("status", "--json"))["nodes"])
        until("nothing of other tests is left", lambda: network() == 0)
        p, at = self.publish("--to", f":{self.echo.port}", "0")
        with socket.create_connection(at, timeout=LIMIT) as s:
            s.sendall(b"x")
            self.assertEqual(s.recv(1), b"x")
            until("the rings are counted", lambda: network() >= 2 * 4096)
        p.terminate()
        self.assertEqual(p.wait(LIMIT), 0)
        until("the rings are freed", lambda: network() == 0)

    def test_unix(self):
        path = os.path.join(self.tmp.name, "server")
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.listen(1)
        def serve():
            while True:
                with server.accept()[0] as s:
                    while data := s.recv(65536):
                        s.sendall(data)
                    s.sendall(b"end")
        threading.Thread(target=serve, daemon=True).start()
        for host in ("", "1"):
            _, at = self.publish("--to", f"{host}:{path}", "0")
            with concurrent.futures.ThreadPoolExecutor(20) as pool:  # more than the socket's queue holds: they wait
                self.assertEqual(list(pool.map(lambda _, at=at: self.talk(at, b"hello"), range(20))), [b"helloend"] * 20)

    def test_thousand(self):
        _, at = self.publish("--to", f":{self.echo.port}", "0")
        every = [socket.create_connection(at, timeout=LIMIT) for _ in range(1000)]
        for i, s in enumerate(every):
            s.sendall(b"%05d" % i)
        for i, s in enumerate(every):
            self.assertEqual(exactly(s, 5), b"%05d" % i)
        self.assertEqual(self.forwards()[str(at[1])]["open"], 1000)
        for s in every:
            s.close()

    def test_no_server(self):
        unused = socket.create_server(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        unused.close()
        _, at = self.publish("--to", f":{port}", "0")
        with self.assertRaises(ConnectionResetError), socket.create_connection(at, timeout=LIMIT) as s:
            self.assertNotEqual(s.recv(1), b"")
        self.assertEqual(self.forwards()[str(at[1])]["refused"], 1)
        until("the reset is logged", lambda: f"node 0 cannot connect to localhost port {port}" in self.log())  # the log comes through a pipe

    def test_ends(self):
        p, at = self.publish("--to", f":{self.echo.port}", "0")
        with socket.create_connection(at, timeout=LIMIT) as s:
            s.sendall(b"x")
            self.assertEqual(s.recv(1), b"x")
            self.assertIn("was not started with --keep", self.weft("publish", "--end", str(at[1]), code=1))
            p.terminate()
            self.assertEqual(p.wait(LIMIT), 0)
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(s.recv(1), b"")
        until("the port is closed", lambda: self.refused(at))
        kept = ("127.0.0.1", int(self.weft("publish", "--keep", "--to", f":{self.echo.port}", "0").strip().rsplit(":", 1)[1]))
        proxy = self.weft("proxy", "--keep", "--listen", "127.0.0.1:0").strip()
        self.echoes(kept)
        host, port = proxy.rsplit(":", 1)
        self.socks((host, int(port))).close()
        self.assertEqual([f["kept"] for f in self.forwards().values()], [True, True])
        self.assertIn("there is no proxy", self.weft("proxy", "--end", str(kept[1]), code=1))
        self.weft("publish", "--end", str(kept[1]))
        self.weft("proxy", "--end", proxy)
        for at in (kept, (host, int(port))):
            until("the port is closed", lambda: self.refused(at))
        until("none is left", lambda: not self.forwards())
        at = ("127.0.0.1", int(self.weft("publish", "--keep", "--to", f":{self.echo.port}", "0").strip().rsplit(":", 1)[1]))
        self.down()
        self.assertTrue(self.refused(at))
        self.up()

    def test_gateway_dies(self):
        p, at = self.publish("--via", "1", "--to", f":{self.echo.port}", "0")
        s = socket.create_connection(at, timeout=LIMIT)
        s.sendall(b"x")
        self.assertEqual(s.recv(1), b"x")
        os.kill(self.pid_of(1), signal.SIGKILL)
        self.assertEqual(p.wait(LIMIT), 1)
        self.assertRegex(p.stderr.read(), "node 1")
        s.close()
        self.down()
        self.up()

    def test_words(self):
        for words, says in ((("8080", "9090"), "unexpected argument '9090'"), ((), "give the port at which"), (("x",), "write PORT or ADDRESS:PORT"), (("70000",), "write"),
                            (("--to", "node1", "80"), "write HOST:PORT"), (("--to", "a:0", "80"), "write HOST:PORT"), (("::1:80",), "write PORT"),
                            (("--to", ":/" + "x" * 103, "80"), "at most 103 bytes"), (("--end", "--keep", "80"), "cannot be used with")):
            self.assertIn(says, self.weft("publish", *words, code=2))
        self.assertIn("no port: give the published port", self.weft("publish", "--end", code=2))
        self.assertIn("`weft status` lists the published ports", self.weft("publish", "--end", "9", code=1))
        for words, says in ((("--to", "nowhere:80", "0"), "there is no host or node 'nowhere'"), (("0",), "port 0 means any free port"),
                            (("--to", ":80", f"127.0.0.1:{self.echo.port}"), "node 1 cannot listen at 127.0.0.1 port"), (("--via", "7", "80"), "no host or node '7'")):
            self.assertIn(says, self.weft("publish", *words, code=1))


class Many(Proxy):
    @unittest.skipUnless("WEFT_TEST_MANY" in os.environ, "the suite `long` has it")
    def test_many(self):
        """WEFT_TEST_MANY connections at once, to a server in a process of its own. Prints how much memory and time they take."""
        count = int(os.environ["WEFT_TEST_MANY"])
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if files < count + 200:
            self.skipTest(f"{files} open files are possible")
        ready, told = os.pipe()
        server = os.fork()
        if server == 0:
            Echo(self.echo.listener)
            os.write(told, b"x")
            signal.pause()
            os._exit(0)
        self.addCleanup(os.waitpid, server, 0)
        self.addCleanup(os.kill, server, signal.SIGKILL)
        os.read(ready, 1)
        self.echo.stopped = True  # at the next connection, which it leaves to the other process
        _, at = self.proxy()
        def taken():
            kilobytes = 0
            for node in (0, 1):
                with open(f"/proc/{self.pid_of(node)}/smaps_rollup", encoding="ascii") as f:
                    kilobytes += int(re.search(r"(?m)^Pss:\s+(\d+)", f.read())[1])
            return kilobytes
        self.socks(at).close()
        before, every = taken(), []
        for i in range(count):
            every.append(self.socks(at))
            every[-1].sendall(b"%05d" % i)
        for i, s in enumerate(every):
            self.assertEqual(exactly(s, 5), b"%05d" % i)
        each = (taken() - before) * 1024 / count
        print(f"{count} connections: {each:.0f} bytes each, of both nodes", file=sys.stderr)
        self.assertLess(each, 16384)
        for i, s in enumerate(every):
            s.sendall(b"%05d" % (i + 1))
        for i, s in enumerate(every):
            self.assertEqual(exactly(s, 5), b"%05d" % (i + 1))
            s.close()


class Files(unittest.TestCase):
    def test_limit_of_open_files(self):
        """The nodes raise their own limit of open files; the programs that they start have the original limit."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 600:
            self.skipTest("a limit this low")
        with tempfile.TemporaryDirectory(prefix="weft-proxy-") as tmp:
            env = clean_env(XDG_RUNTIME_DIR=tmp, HOME=tmp)
            run = functools.partial(subprocess.run, env=env, check=True, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
            resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
            try:
                run([WEFT, "up", "-n", "1"])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            try:
                pid = json.loads(run([WEFT, "status", "--json"]).stdout)["nodes"][0]["pid"]
                with open(f"/proc/{pid}/limits", encoding="ascii") as f:
                    self.assertRegex(f.read(), rf"(?m)^Max open files +{hard} +{hard} ")
                self.assertEqual(run([WEFT, "exec", "--", "sh", "-c", "ulimit -n"]).stdout, "512\n")
            finally:
                run([WEFT, "down"])


class Ends(Proxy):
    def test_command_is_killed(self):
        p, at = self.proxy()
        s = self.socks(at)
        p.kill()
        p.wait()
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(s.recv(1), b"")
        s.close()
        def refused():
            try:
                socket.create_connection(at, timeout=LIMIT).close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:  # the port was closed meanwhile
                pass
            return False
        until("the port is closed", refused)

    def test_signal(self):
        p, _ = self.proxy()
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(LIMIT), 0)

    def test_gateway_stops_and_dies(self):
        """Stopped and continued: nothing is lost. Killed in the middle of a download: an error, and at once."""
        p, at = self.proxy("--via", "1")
        pid = self.pid_of(1)
        with self.socks(at) as s:
            processes.stop(pid)
            s.sendall(b"x" * 50_000)
            time.sleep(0.2)
            os.kill(pid, signal.SIGCONT)
            self.assertEqual(exactly(s, 50_000), b"x" * 50_000)
        s = self.socks(at, self.port)
        s.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertTrue(exactly(s, 100_000))
        os.kill(pid, signal.SIGKILL)
        with self.assertRaises(ConnectionResetError):
            while s.recv(1 << 20):
                pass
        s.close()
        with contextlib.suppress(ConnectionError):
            got = self.talk(at, f"CONNECT 127.0.0.1:{self.port} HTTP/1.1\r\n\r\n".encode())
            self.assertIn(b" 502 ", got)
        self.down()
        p.wait(LIMIT)
        self.assertEqual(p.returncode, 1)
        self.assertFalse(alive(pid))
        self.up()


if __name__ == "__main__":
    del sys.argv[1:3]
    unittest.main()
