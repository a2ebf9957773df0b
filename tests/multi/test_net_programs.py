#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Real programs without network, through weft proxy and weft publish. Network namespaces of this process, each a host: `world` has the servers,
`gate` reaches it, and `bare` has only the network of the cluster, on which nothing leads to the world. A standing cluster has a node in `gate`,
the gateway, and one in `bare`. Clients run in `void`, which has nothing but its loopback and finds the node of `bare` by its control socket. A
name server in `world` answers, for one name, something else each time it is asked. Rules deny the names secret.test and *.inner.test.

Usage: test_net_programs.py PATH-OF-WEFT
"""
import contextlib
import functools
import gzip
import hashlib
import http.server
import json
import os
import re
import resource
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
from processes import clean_env, patience  # noqa: E402

WEFT = os.path.abspath(sys.argv[1])
LIMIT = patience(60)
until = functools.partial(processes.until, limit=LIMIT)
SKIP = 77
WORLD, GATE = "10.78.0.2", "10.78.0.1"
SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/lib/git-core"))
BIG = 8_000_003


def find(name):
    return shutil.which(name, path=SBIN)


def needs(*names):
    missing = [n for n in names if not find(n)]
    return unittest.skipIf(missing, "needs " + ", ".join(missing) + " (tools/deps test)")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make_networks():
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "weft-netns", "/run/netns"], check=True)
    for name in ("world", "gate", "bare", "void"):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("-n", "gate", "link", "add", "cluster0", "type", "veth", "peer", "name", "cluster0", "netns", "bare")
    for name, host in (("gate", 1), ("bare", 2)):
        ip("-n", name, "addr", "add", f"10.79.0.{host}/24", "dev", "cluster0")
        ip("-n", name, "link", "set", "cluster0", "up")
    ip("-n", "gate", "link", "add", "net0", "type", "veth", "peer", "name", "net0", "netns", "world")
    for name, host in (("gate", 1), ("world", 2)):
        ip("-n", name, "addr", "add", f"10.78.0.{host}/24", "dev", "net0")
        ip("-n", name, "addr", "add", f"fd78::{host}/64", "dev", "net0", "nodad")
        ip("-n", name, "link", "set", "net0", "up")


def within(name):
    """The words that run a command in a namespace."""
    return ["nsenter", f"--net=/run/netns/{name}", "--"]


@contextlib.contextmanager
def thread_in(name):
    """Sockets that this thread makes belong to a namespace."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def enter(path):
        with open(path, "rb") as f:
            if libc.setns(f.fileno(), 0):
                raise OSError(ctypes.get_errno(), path)
    enter(f"/run/netns/{name}")
    try:
        yield
    finally:
        enter(f"/proc/{os.getpid()}/ns/net")


def is_listening(pid, port):
    """Whether somebody listens at a port, in the namespace of a process. Not by connecting: iperf3 would take that for its client."""
    found = False
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            found = found or any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in list(f)[1:])
    return found


def wire(name):
    """A name as the protocol of name servers writes it."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class Names(threading.Thread):
    """A name server: a few names below .test, of which `twice` alternates between the world and the asker's loopback, and some are aliases."""
    ALIASES = {"alias.test": "secret.test", "far.test": "alias.test", "good.test": "world.test"}

    def __init__(self):
        super().__init__(daemon=True)
        with thread_in("world"):
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.bind((WORLD, 53))
        self.asked = {}
        self.start()

    def addresses(self, name, kind):
        self.asked[name, kind] = count = self.asked.get((name, kind), 0) + 1
        table = {("world.test", 1): [WORLD], ("world.test", 28): ["fd78::2"], ("four.test", 1): [WORLD], ("inside.test", 1): ["127.0.0.1"],
                 ("mapped.test", 28): ["::ffff:127.0.0.1"], ("metadata.test", 1): ["169.254.169.254"], ("both.test", 1): ["127.0.0.1", "169.254.1.1"],
                 ("twice.test", 1): [[WORLD], ["127.0.0.1"]][(count - 1) % 2], ("secret.test", 1): [WORLD], ("host.inner.test", 1): [WORLD]}
        if (name, kind) in table:
            return table[name, kind]
        return [] if any(n == name for n, _ in table) else None

    def run(self):
        while True:
            query, peer = self.socket.recvfrom(4096)
            at, labels = 12, []
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
                at += query[at] + 1
            kind = struct.unpack(">H", query[at + 1:at + 3])[0]
            name, records = ".".join(labels), []
            owner = wire(name)
            while name in self.ALIASES:
                name = self.ALIASES[name]
                records.append((owner, 5, wire(name)))
                owner = wire(name)
            found = self.addresses(name, kind)
            records += [(owner, kind, socket.inet_pton(socket.AF_INET6 if kind == 28 else socket.AF_INET, text)) for text in found or []]
            answer = query[:2] + struct.pack(">HHHHH", 0x8580 | (3 if found is None else 0), 1, len(records), 0, 0) + query[12:at + 5]
            for owner, what, raw in records:
                answer += owner + struct.pack(">HHIH", what, 1, 0, len(raw)) + raw
            self.socket.sendto(answer, peer)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bare, cls.gate, cls.world, cls.void = (within(n) for n in ("bare", "gate", "world", "void"))
        cls.tmp = TMP
        cls.env = dict(ENV, XDG_RUNTIME_DIR=TMP + "/bare")

    def setUp(self):
        self.started = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for p in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.communicate()

    def start(self, *args, **more):
        p = subprocess.Popen(args, env=more.pop("env", self.env), stdin=subprocess.DEVNULL, start_new_session=True, **more)
        self.started.append(p)
        return p

    def serve(self, where, port, *args, **more):
        """Starts a server in a namespace, and waits until it listens."""
        with open(self.path("server.log"), "ab") as log:
            p = self.start(*within(where), *args, stdout=log, stderr=log, **more)
        def listens():
            if p.poll() is not None:
                with open(self.path("server.log"), encoding="utf-8", errors="replace") as f:
                    self.fail(f"{args}: {p.returncode}\n{f.read()[-2000:]}")
            return is_listening(p.pid, port)
        until(f"{args[0]} listens", listens)
        return p

    def path(self, name):
        return os.path.join(self.tmp, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def run_in(self, where, *args, code=0, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.run([*where, *args], capture_output=True, text=more.pop("text", True), timeout=LIMIT, check=False, env=more.pop("env", self.env), **more)
        if code is not None and p.returncode != code:
            self.fail(f"{str(args)[:400]}: {p.returncode}\n{p.stdout[-2000:]}\n{p.stderr[-2000:]}\n{log('bare')[-1000:]}\n{log('gate')[-2000:]}")
        return p

    def proxied(self, *args, **more):
        """A program without any network, with the variables of a proxy."""
        return self.run_in(self.void, WEFT, "proxy", "--", *args, **more)

    def chained(self, *args, **more):
        """A program that knows no proxy."""
        script = ('port=${all_proxy##*:}; printf "strict_chain\\nproxy_dns\\n[ProxyList]\\nsocks5 127.0.0.1 %s\\n" "$port" >"$1.$port"; '
                  'conf=$1.$port; shift; exec proxychains4 -q -f "$conf" "$@"')
        return self.proxied("sh", "-c", script, "sh", self.path("chains"), *args, **more)

    def publish(self, *args):
        p = self.start(*self.bare, WEFT, "publish", *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = p.stdout.readline().strip()
        if not line:
            self.fail(p.stderr.read())
        return line.rsplit(":", 1)[1]

    def nginx(self, where, port, folder, more="", how=""):
        os.makedirs(self.path(folder), exist_ok=True)
        home = self.path(f"nginx-{where}-{port}")
        os.makedirs(home, exist_ok=True)
        temps = "".join(f"{w}_temp_path {home}/{w};\n" for w in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        conf = self.write(f"nginx-{where}-{port}.conf", f"""
            daemon off; master_process off; pid {home}/pid; error_log {home}/log; worker_rlimit_nofile 8192;
            events {{ worker_connections 4096; }}
            http {{ access_log off; {temps}
              server {{ listen {port} {how}; listen [::]:{port} {how}; {more} root {self.path(folder)}; autoindex on;
                location /away {{ return 302 http://127.0.0.1:{port}/small; }}
                location /mapped {{ return 302 http://[::ffff:7f00:1]:{port}/small; }} }} }}""")
        self.serve(where, port, find("nginx"), "-p", home, "-e", home + "/log", "-c", conf)

    def certificate(self):
        self.run_in([], "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=world.test",
                    "-addext", "subjectAltName=DNS:world.test", "-keyout", self.path("key"), "-out", self.path("cert"))
        return self.path("cert")

    def www(self):
        os.makedirs(self.path("www"), exist_ok=True)
        self.write("www/small", "small\n")
        data = hashlib.sha256(b"weft").digest() * (BIG // 32 + 1)
        with open(self.path("www/big"), "wb") as f:
            f.write(data[:BIG])
        return hashlib.sha256(data[:BIG]).hexdigest()

    def ssh_server(self, where, port):
        """An sshd of this user with keys of this test, and the words of a client for it."""
        for name in ("host-key", "user-key"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
            self.run_in([], "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(name))
        shutil.copy(self.path("user-key.pub"), self.path("authorized"))
        os.chmod(self.path("authorized"), 0o600)
        os.makedirs("/run/sshd", exist_ok=True)
        conf = self.write("sshd.conf", f"HostKey {self.path('host-key')}\nAuthorizedKeysFile {self.path('authorized')}\nStrictModes no\nPidFile none\n"
                                       "UsePAM no\nPasswordAuthentication no\n")
        self.serve(where, port, find("sshd"), "-D", "-e", "-p", str(port), "-f", conf)
        import pwd
        return ["-F", "/dev/null", "-i", self.path("user-key"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
                "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-l", pwd.getpwuid(os.geteuid()).pw_name, "-p", str(port)]


class Out(Case):
    """Programs on a host without network reach servers of the world."""

    def test_it_has_no_network(self):
        """Else the other tests would prove nothing."""
        out = self.run_in(self.void, "ip", "-o", "link").stdout
        self.assertEqual(re.findall(r"(?m)^\d+: ([^:@]+)", out), ["lo"])
        for where in (self.void, self.bare):
            p = self.run_in(where, sys.executable, "-c", f"import socket; socket.create_connection(('{WORLD}', 53))", code=1)
            self.assertIn("unreachable", p.stderr)

    @needs("curl", "nginx", "openssl")
    def test_curl(self):
        big = self.www()
        cert = self.certificate()
        self.nginx("world", 80, "www")
        self.nginx("world", 443, "www", f"ssl_certificate {cert}; ssl_certificate_key {self.path('key')};", how="ssl http2")
        def curl(*args, **more):
            return self.proxied("curl", "-sS", "--max-time", f"{LIMIT:.0f}", "--cacert", cert, *args, **more)
        for url in ("http://world.test/small", f"http://{WORLD}/small", "http://[fd78::2]/small", "https://world.test/small"):
            self.assertEqual(curl("-g", url).stdout, "small\n", url)
        self.assertEqual(curl("--http2", "-o", "/dev/null", "-w", "%{http_version}", "https://world.test/small").stdout, "2")
        self.assertEqual(curl("--http1.1", "-o", "/dev/null", "-w", "%{http_version}", "https://world.test/small").stdout, "1.1")
        for url in ("http://world.test/big", "https://world.test/big"):
            self.assertEqual(hashlib.sha256(curl(url, text=False).stdout).hexdigest(), big)
        self.assertEqual(self.chained("curl", "-sS", "--noproxy", "*", "http://world.test/small").stdout if find("proxychains4") else "small\n", "small\n")
        socks = 'exec curl -gsS --socks5 "${all_proxy#*//}" "$1"'  # with the address, not the name
        for url in (f"http://{WORLD}/small", "http://[fd78::2]/small"):
            self.assertEqual(self.proxied("sh", "-c", socks, "sh", url).stdout, "small\n", url)
        p = curl("https://world.test/small", "--cacert", "/dev/null", code=None)
        self.assertNotEqual(p.returncode, 0)  # the certificate was looked at
        script = "import ssl, sys, urllib.request as u\nprint(u.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2])).read())"
        self.assertEqual(self.proxied(sys.executable, "-c", script, "https://world.test/small", cert).stdout, "b'small\\n'\n")
        # Redirects and names that lead where the rules forbid. At the gateway a server listens there: it must not be asked.
        self.nginx("gate", 80, "www")
        for host, how in (("world.test", "away"), ("world.test", "mapped"), ("inside.test", "small"), ("mapped.test", "small"), ("metadata.test", "small"),
                          ("both.test", "small"), ("127.0.0.1", "small"), ("[::ffff:127.0.0.1]", "small"), ("[::1]", "small"), ("0", "small")):
            p = curl("-g", "-L", "-o", "/dev/null", "-w", "%{http_code}", f"http://{host}/{how}")
            self.assertEqual(p.stdout, "403", (host, how))
        self.assertEqual(curl("http://four.test/small").stdout, "small\n")

    @needs("curl", "nginx")
    def test_name_that_changes(self):
        """The gateway connects to exactly the address that it has checked: it resolves a name only once, so a later answer with another
        address has no effect."""
        self.www()
        self.nginx("world", 80, "www")
        self.nginx("gate", 80, "www")
        codes = []
        for _ in range(6):
            before = NAMES.asked.get(("twice.test", 1), 0)
            p = self.proxied("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}", "http://twice.test/small")
            self.assertEqual(NAMES.asked["twice.test", 1] - before, 1)
            codes.append(p.stdout.split()[0])
        self.assertEqual(sorted(codes), ["200"] * 3 + ["403"] * 3)

    @needs("curl", "nginx")
    def test_denied_names(self):
        """A name that a rule denies is not reached by an alias of it, nor by its short form with the gateway's search list, nor with a dot behind it."""
        self.www()
        self.nginx("world", 80, "www")
        def code(host):
            return self.proxied("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://{host}/small").stdout
        for host in ("secret.test", "Secret.Test", "secret.test.", "alias.test", "far.test", "host.inner.test", "host"):
            self.assertEqual(code(host), "403", host)
        self.assertIn("rule deny=*.inner.test of the gateway forbids it, because the name stands for host.inner.test", log("gate"))
        self.assertIn("rule deny=secret.test of the gateway forbids it, because the name stands for secret.test", log("gate"))
        for host in ("world.test", "good.test", "four"):
            self.assertEqual(code(host), "200", host)

    @needs("git", "nginx")
    def test_git(self):
        work = self.path("www/repository.git")
        git = functools.partial(self.run_in, [], "git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", "-c", "init.defaultBranch=main")
        git("init", work)
        self.write("www/repository.git/file", "content\n" * 10000)
        git("-C", work, "add", "file")
        git("-C", work, "commit", "-m", "one")
        git("-C", work, "update-server-info")
        self.nginx("world", 80, "www")
        self.proxied("git", "clone", "http://world.test/repository.git/.git", self.path("clone-http"))
        with open(self.path("clone-http/file"), encoding="ascii") as f:
            self.assertEqual(f.read(), "content\n" * 10000)
        if find("proxychains4") and find("git-daemon"):
            self.serve("world", 9418, "git", "daemon", "--export-all", "--base-path=" + self.path("www"), "--reuseaddr")
            self.chained("git", "clone", "git://world.test/repository.git", self.path("clone-git"))
            self.assertEqual(os.stat(self.path("clone-git/file")).st_size, 80000)

    @needs("apt-get", "dpkg-deb", "nginx")
    def test_apt(self):
        """apt-get update and download from a mirror of this test."""
        package = self.path("package")
        os.makedirs(package + "/DEBIAN")
        os.makedirs(package + "/usr/share/weft-hello")
        self.write("package/usr/share/weft-hello/hello", "hello\n")
        control = "Package: weft-hello\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t.invalid>\nDescription: test\n"
        self.write("package/DEBIAN/control", control)
        os.makedirs(self.path("www/deb"))
        self.run_in([], "dpkg-deb", "--root-owner-group", "--build", package, self.path("www/deb/weft-hello.deb"))
        with open(self.path("www/deb/weft-hello.deb"), "rb") as f:
            deb = f.read()
        index = control + f"Filename: ./weft-hello.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n\n"
        with gzip.open(self.path("www/deb/Packages.gz"), "wb") as f:
            f.write(index.encode())
        self.nginx("world", 80, "www")
        apt = self.path("apt")
        for name in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "etc/trusted.gpg.d", "here"):
            os.makedirs(f"{apt}/{name}")
        open(apt + "/status", "w", encoding="ascii").close()
        with open(apt + "/etc/sources.list", "w", encoding="ascii") as f:
            f.write("deb [trusted=yes] http://world.test/deb ./\n")
        options = [f"-oDir::Etc={apt}/etc", f"-oDir::State={apt}", f"-oDir::State::Lists={apt}/lists", f"-oDir::State::status={apt}/status",
                   f"-oDir::Cache={apt}/cache", "-oAPT::Sandbox::User=", "-oAcquire::Languages=none"]
        self.proxied("apt-get", *options, "-oAPT::Update::Error-Mode=any", "update", cwd=apt + "/here")
        self.proxied("apt-get", *options, "download", "weft-hello", cwd=apt + "/here")
        with open(f"{apt}/here/weft-hello_1_all.deb", "rb") as f:
            self.assertEqual(f.read(), deb)

    @needs("redis-server", "redis-cli", "proxychains4")
    def test_redis(self):
        self.serve("world", 6379, "redis-server", "--port", "6379", "--bind", WORLD, "127.0.0.1", "--protected-mode", "no", "--save", "", "--dir", self.tmp)
        self.chained("redis-cli", "-h", "world.test", "set", "weft", "x" * 10000)
        self.assertEqual(self.chained("redis-cli", "-h", "world.test", "get", "weft").stdout, "x" * 10000 + "\n")
        out = self.chained("redis-cli", "-h", "world.test", "--pipe", input="".join(f"SET key{i} {i}\r\n" for i in range(20000)), stdin=None).stdout
        self.assertIn("errors: 0, replies: 20000", out)

    @needs("sshd", "ssh", "ssh-keygen", "proxychains4")
    def test_ssh(self):
        words = self.ssh_server("world", 2222)
        self.assertEqual(self.chained("ssh", *words, "world.test", "echo over ssh").stdout, "over ssh\n")
        size = self.chained("ssh", *words, "world.test", "head -c 3000000 /dev/zero", text=False).stdout
        self.assertEqual(size, bytes(3_000_000))
        # ProxyCommand: a program that asks the proxy for a connection, as `nc -X 5` and connect-proxy do.
        command = (f"{sys.executable} -c \"import os,socket,sys,threading,urllib.parse as u;p=u.urlsplit(os.environ['all_proxy']);"
                   "s=socket.create_connection((p.hostname,p.port));h=sys.argv[1].encode();"
                   "s.sendall(b'CONNECT %s:%s HTTP/1.1\\r\\n\\r\\n'%(h,sys.argv[2].encode()));\n"
                   "b=b''\nwhile not b.endswith(b'\\r\\n\\r\\n'): b+=s.recv(1)\n"
                   "def up():\n  while d:=os.read(0,65536): s.sendall(d)\n  s.shutdown(1)\n"
                   "threading.Thread(target=up,daemon=True).start()\nwhile d:=s.recv(65536): os.write(1,d)\n\" %h %p")
        script = self.path("connect.sh")
        self.write("connect.sh", "#!/bin/sh\nexec " + command.replace(" %h %p", ' "$1" "$2"') + "\n")
        os.chmod(script, 0o755)
        self.assertEqual(self.proxied("ssh", "-o", f"ProxyCommand={script} %h %p", *words, "world.test", "echo by command").stdout, "by command\n")

    @needs("iperf3", "proxychains4")
    def test_iperf3(self):
        for port, way in ((5201, []), (5202, ["-R"])):  # a server each: it is busy for a moment after a client has ended
            self.serve("world", port, "iperf3", "-s", "-p", str(port))
            got = json.loads(self.chained("iperf3", "-c", "world.test", "-p", str(port), "-J", "-n", "40M", *way).stdout)
            self.assertIn("sum_received", got["end"], got)
            self.assertGreater(got["end"]["sum_received"]["bytes"], 20 << 20)  # the rest may be on its way when iperf3 stops counting


    @needs("drill")
    def test_dns(self):
        """DNS over UDP: a small client of SOCKS5 at port 5300 of the loopback passes the datagrams of drill on; and over TCP by itself."""
        client = """if True:
            import os, socket, struct, subprocess, sys, threading, urllib.parse
            p = urllib.parse.urlsplit(os.environ["all_proxy"])
            control = socket.create_connection((p.hostname, p.port))
            control.sendall(bytes([5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]))
            answer = b""
            while len(answer) < 12:
                answer += control.recv(12 - len(answer))
            to = socket.inet_ntoa(answer[6:10]), struct.unpack(">H", answer[10:])[0]
            head = bytes(3) + bytes([1]) + socket.inet_aton(sys.argv[1]) + struct.pack(">H", 53)
            outside, inside = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
            inside.bind(("127.0.0.1", 5300))
            def serve():
                while True:
                    query, peer = inside.recvfrom(4096)
                    outside.sendto(head + query, to)
                    data = outside.recv(4096)
                    assert data[:10] == head
                    inside.sendto(data[10:], peer)
            threading.Thread(target=serve, daemon=True).start()
            sys.exit(subprocess.run(sys.argv[2:]).returncode)"""
        def drill(*words):
            return self.proxied(sys.executable, "-c", client, WORLD, "drill", "-p", "5300", *words, "@127.0.0.1").stdout
        self.assertRegex(drill("world.test"), rf"(?m)^world\.test\.\s+0\s+IN\s+A\s+{WORLD}$")
        self.assertRegex(drill("world.test", "AAAA"), r"(?m)^world\.test\.\s+0\s+IN\s+AAAA\s+fd78::2$")
        self.assertIn("NXDOMAIN", drill("nothing.test"))


class In(Case):
    """Programs of the world reach servers of the host without network."""

    @needs("curl", "nginx")
    def test_nginx(self):
        big = self.www()
        self.nginx("bare", 8080, "www")
        port = self.publish("--to", ":8080", "8000")
        self.assertEqual(port, "8000")
        for address in (GATE, "[fd78::1]"):
            self.assertEqual(self.run_in(self.world, "curl", "-gsS", f"http://{address}:8000/small").stdout, "small\n")
        got = self.run_in(self.world, "curl", "-sS", f"http://{GATE}:8000/big", text=False).stdout
        self.assertEqual(hashlib.sha256(got).hexdigest(), big)
        urls = [f"http://{GATE}:8000/small"] * 50
        self.assertEqual(self.run_in(self.world, "curl", "-sS", "--parallel", "--parallel-max", "50", *urls).stdout, "small\n" * 50)
        status = self.run_in(self.bare, WEFT, "status").stdout
        self.assertRegex(status, r"(?m)^publish +\[::\]:8000 +0 +1:8080 ")

    @needs("sshd", "ssh", "ssh-keygen")
    def test_sshd(self):
        words = self.ssh_server("bare", 2022)
        port = self.publish("--to", ":2022", f"{GATE}:0")
        words[-1] = port
        p = self.run_in(self.world, "ssh", *words, GATE, "ip -o link | grep -c cluster0; cat", input="input\n" * 100_000, stdin=None)
        self.assertEqual(p.stdout, "1\n" + "input\n" * 100_000)

    @needs("iperf3")
    def test_iperf3(self):
        for server, way in ((5301, []), (5302, ["-R"])):
            self.serve("bare", server, "iperf3", "-s", "-p", str(server))
            port = self.publish("--to", f":{server}", "0")
            got = json.loads(self.run_in(self.world, "iperf3", "-c", GATE, "-p", port, "-J", "-n", "40M", *way).stdout)
            self.assertIn("sum_received", got["end"], got)
            self.assertGreater(got["end"]["sum_received"]["bytes"], 20 << 20)  # the rest may be on its way when iperf3 stops counting

    def test_from_the_gate(self):
        """`weft publish` is started at the gateway: the gateway's port leads to the host without network."""
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"page\n")
            def log_message(self, *_):
                pass
        with thread_in("bare"):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        p = self.start(*self.gate, WEFT, "publish", "--to", f"1:{server.server_address[1]}", "0", env=dict(ENV, XDG_RUNTIME_DIR=TMP + "/gate"),
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        port = int(p.stdout.readline().rsplit(":", 1)[1])
        with thread_in("world"), socket.create_connection((GATE, port), timeout=LIMIT) as s:
            s.sendall(b"GET / HTTP/1.0\r\n\r\n")
            got = b""
            while data := s.recv(4096):
                got += data
        self.assertTrue(got.endswith(b"\r\n\r\npage\n"), got)


class Survival(Case):
    @needs("curl", "nginx")
    def test_gateway_stops_and_dies(self):
        """Stopped and continued: the download goes on. Killed: a clean error, at once. Last of all tests: the gateway is gone."""
        os.makedirs(self.path("www"), exist_ok=True)
        with open(self.path("www/large"), "wb") as f:
            f.truncate(1 << 30)
        self.nginx("world", 80, "www", "limit_rate 20m;")
        p = self.start(*self.void, WEFT, "proxy", "--", "curl", "-sS", "-o", "/dev/null", "http://world.test/large", stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True)
        def down():
            forwards = json.loads(self.run_in(self.bare, WEFT, "status", "--json").stdout)["forwards"]
            return forwards[0]["down_bytes"] if forwards else 0
        until("bytes come", down)
        processes.stop(GATEWAY.pid)
        time.sleep(0.5)
        before = down()
        os.kill(GATEWAY.pid, signal.SIGCONT)
        until("more bytes come", lambda: down() > before)
        self.assertIsNone(p.poll())
        GATEWAY.kill()
        GATEWAY.wait()
        began = time.monotonic()
        _, err = p.communicate(timeout=LIMIT)
        self.assertLess(time.monotonic() - began, patience(10))
        self.assertIn(p.returncode, (18, 52, 56), err)  # curl: a part of the file, no answer, or an error while receiving
        self.assertTrue(err)


def log(name):
    with open(f"{TMP}/{name}.log", encoding="utf-8", errors="replace") as f:
        return f.read()


def start_node(rank, name):
    os.makedirs(f"{TMP}/{name}", mode=0o700)
    env = dict(ENV, XDG_RUNTIME_DIR=f"{TMP}/{name}", WEFT_COORD="10.79.0.1:7979", WEFT_SECRET="of this test", WEFT_SIZE="2", WEFT_RANK=str(rank), WEFT_LOG="warn")
    with open(f"{TMP}/{name}.log", "wb") as out:
        return subprocess.Popen([*within(name), WEFT, "up", "--here", "--pool", "256M", "--deny", "secret.test", "--deny", "*.inner.test"], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def nodes_up():
    p = subprocess.run([WEFT, "status", "--json"], env=dict(ENV, XDG_RUNTIME_DIR=TMP + "/bare"), capture_output=True, text=True, check=False, timeout=LIMIT)
    return p.returncode == 0 and len([n for n in json.loads(p.stdout)["nodes"] if "net" in n["services"] and n["state"] == "up"]) == 2


if "TEST_IN_NETWORK" not in os.environ:
    own = ["unshare", "--mount", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
    if not find("ip") or subprocess.run([*own, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        print("test_net_programs: this user may not make namespaces")
        sys.exit(SKIP)
    os.environ["TEST_IN_NETWORK"] = "1"
    os.execvp(own[0], [*own, sys.executable, *sys.argv])

FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (FILES[1], FILES[1]))
TMP = tempfile.mkdtemp(prefix="weft-net-", dir="/tmp")
os.chmod(TMP, 0o755)
# On a busy machine a silent node must not be declared dead.
ENV = clean_env(HOME=TMP, WEFT_LIVENESS="30s", PATH=SBIN, no_proxy="", GIT_CONFIG_NOSYSTEM="1", LC_ALL="C.UTF-8")
for word in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
    ENV.pop(word, None)
GATEWAY = BARE = None
try:
    make_networks()
    with open(TMP + "/resolv.conf", "w", encoding="ascii") as file:
        file.write(f"nameserver {WORLD}\nsearch inner.test test\n")
    subprocess.run(["mount", "--bind", TMP + "/resolv.conf", os.path.realpath("/etc/resolv.conf")], check=True)
    NAMES = Names()
    GATEWAY = start_node(0, "gate")
    BARE = start_node(1, "bare")
    until("both nodes are up", nodes_up)
    del sys.argv[1]
    STATUS = unittest.main(exit=False, testRunner=unittest.TextTestRunner(verbosity=1)).result.wasSuccessful()
finally:
    for node in (GATEWAY, BARE):
        if node:
            node.terminate()
    for node in (GATEWAY, BARE):
        if node:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(LIMIT)
    shutil.rmtree(TMP, ignore_errors=True)
sys.exit(0 if STATUS else 1)
