# SPDX-License-Identifier: MIT
"""`weft proxy` beside other proxies of SOCKS5, on this host: the client is this process or curl, the server is nginx, both on loopback."""
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import time

from rig import Missing, Ours, Row, Side, end, free_port, scaled, start, wait_listening
from suites.ssh import Server

NAME = "gateway"
TITLE = "connections through the network of another node"
BYTES = 4 << 30
REQUESTS, CONNECTIONS = 3000, 2000
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROXIES = ["ssh -D", "microsocks", "dante"]


def rows(context):
    return [Row("download", "4 GiB by one connection (curl)", "MB/s", "higher", 1.0, PROXIES),
            Row("processor", "the proxy's processor time for that", "s/GB", "lower", 1.0, PROXIES),
            Row("latency", "a short request on a connection that is open, median", "us", "lower", 1.0, PROXIES),
            Row("requests", "such requests of one connection, one after the other", "1/s", "higher", 1.0, PROXIES),
            Row("connections", "connection, request and end, one after the other", "1/s", "higher", 1.0, PROXIES)]


def groups(context):
    return ["download", "requests", "connections"]


class Web:
    """nginx with a file without contents, and a small one. One for all sides."""
    users, process = 0, None

    def begin(self):
        self.users += 1
        if self.process:
            return
        nginx = shutil.which("nginx", path=PATH)
        self.folder, self.port = tempfile.mkdtemp(prefix="weft-bench-"), free_port()
        with open(self.folder + "/large", "wb") as f:
            f.truncate(BYTES)
        with open(self.folder + "/small", "wb") as f:
            f.write(b"x" * 100)
        temps = "".join(f"{w}_temp_path {self.folder}/{w};" for w in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(self.folder + "/conf", "w", encoding="ascii") as f:
            f.write(f"daemon off; master_process off; pid {self.folder}/pid; error_log {self.folder}/log; events {{ worker_connections 4096; }}\n"
                    f"http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; {temps}\n"
                    f"server {{ listen 127.0.0.1:{self.port}; root {self.folder}; }} }}\n")
        self.process = start([nginx, "-p", self.folder, "-e", self.folder + "/log", "-c", self.folder + "/conf"])
        wait_listening(self.port, self.process)

    def finish(self):
        self.users -= 1
        if self.process and not self.users:
            end(self.process)
            self.process.communicate()
            self.process = None
            shutil.rmtree(self.folder, ignore_errors=True)


WEB = Web()
REQUEST = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"


def needs():
    missing = [n for n in ("nginx", "curl") if not shutil.which(n, path=PATH)]
    return " and ".join(missing) + " not installed" if missing else None


def tree(pid):
    """A process and its descendants."""
    found = [pid]
    for one in found:
        for task in os.listdir(f"/proc/{one}/task"):
            with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as f:
                found += map(int, f.read().split())
    return found


def processor(pids):
    """Seconds of processor time of processes and their descendants, those that have ended included."""
    total = 0
    for pid in {p for root in pids for p in tree(root)}:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            total += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


class Through:
    """What all sides do. `port`: of the proxy; None: there is none. `pids`: its processes."""
    port, pids = None, ()

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port or WEB.port), timeout=30)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.port:
            s.sendall(b"\x05\x01\0")
            s.recv(2, socket.MSG_WAITALL)
            s.sendall(b"\x05\x01\0\x01\x7f\0\0\x01" + struct.pack(">H", WEB.port))
            if s.recv(10, socket.MSG_WAITALL)[1:2] != b"\0":
                raise Missing("the proxy refused to connect")
        return s

    def request(self, s):
        s.sendall(REQUEST)
        got = b""
        while b"\r\n\r\n" not in got or len(got) - got.index(b"\r\n\r\n") < 104:
            data = s.recv(4096)
            if not data:
                raise Missing("the connection has ended early")
            got += data

    def measure(self, group, scale):
        if group == "download":
            size = int(BYTES * scale)
            through = ["--proxy", f"socks5h://127.0.0.1:{self.port}"] if self.port else []
            before = processor(self.pids)
            p = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{speed_download} %{size_download}", "-r", f"0-{size - 1}", *through,
                                f"http://127.0.0.1:{WEB.port}/large"], capture_output=True, text=True, check=False)
            if p.returncode or int(p.stdout.split()[1]) != size:
                raise Missing("curl: " + p.stderr.strip()[-200:])
            found = {"download": float(p.stdout.split()[0]) / 1e6}
            if self.pids:
                found["processor"] = (processor(self.pids) - before) / (size / 1e9)
            return found
        if group == "requests":
            with self.connect() as s:
                times = [time.perf_counter()]
                for _ in range(scaled(REQUESTS, scale, 50)):
                    self.request(s)
                    times.append(time.perf_counter())
            return {"latency": statistics.median(b - a for a, b in zip(times, times[1:])) * 1e6,
                    "requests": (len(times) - 1) / (times[-1] - times[0])}
        count, began = scaled(CONNECTIONS, scale, 50), time.perf_counter()
        for _ in range(count):
            with self.connect() as s:
                self.request(s)
        return {"connections": count / (time.perf_counter() - began)}


class Weft(Through, Ours):
    """Two nodes of this host: the proxy's, and the gateway."""
    PROGRAM = "bench_services"
    proxy, is_up = None, False

    def missing(self):
        return Ours.missing(self) or needs()

    def prepare(self):
        WEB.begin()
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        self.env = {**os.environ, "XDG_RUNTIME_DIR": self.folder}
        weft = os.path.join(self.context.build, "src", "cli", "weft")
        self.weft, self.port = weft, free_port()
        self.is_up = subprocess.run([weft, "up", "-n", "2", "--allow", "127.0.0.1"], env=self.env, stderr=subprocess.DEVNULL, check=False).returncode == 0
        if not self.is_up:
            return
        self.proxy = start([weft, "proxy", "--listen", f"127.0.0.1:{self.port}"], env=self.env)
        self.proxy.stdout.readline()
        status = subprocess.run([weft, "status", "--json"], env=self.env, capture_output=True, text=True, check=True).stdout
        self.pids = [n["pid"] for n in json.loads(status)["nodes"]]

    def measure(self, group, scale):
        if not self.is_up:
            raise Missing("weft up failed")
        return super().measure(group, scale)

    def finish(self):
        if self.proxy:
            end(self.proxy)
            self.proxy.communicate()
        if self.is_up:
            subprocess.run([self.weft, "down"], env=self.env, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        WEB.finish()


class Direct(Through, Side):
    """No proxy."""
    peer, limit = "direct", True

    def missing(self):
        return needs()

    def prepare(self):
        WEB.begin()

    def finish(self):
        WEB.finish()


class Proxy(Through, Side):
    """A proxy that is one program."""
    process = None

    def __init__(self, peer, program):
        self.peer, self.program = peer, program

    def missing(self):
        return needs() or (None if shutil.which(self.program, path=PATH) else self.program + " is not installed")

    def command(self):
        return ["-i", "127.0.0.1", "-p", str(self.port)]

    def prepare(self):
        WEB.begin()
        self.folder, self.port = tempfile.mkdtemp(prefix="weft-bench-"), free_port()
        self.process = subprocess.Popen([shutil.which(self.program, path=PATH), *self.command()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)  # microsocks has a line for each connection
        wait_listening(self.port, self.process)
        self.pids = [self.process.pid]

    def finish(self):
        if self.process:
            end(self.process)
            self.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)
        WEB.finish()


class Dante(Proxy):
    def command(self):
        conf = self.folder + "/conf"
        with open(conf, "w", encoding="ascii") as f:
            f.write(f"logoutput: {self.folder}/log\ninternal: 127.0.0.1 port = {self.port}\nexternal: 127.0.0.1\nclientmethod: none\nsocksmethod: none\n"
                    "client pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }\nsocks pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }\n")
        return ["-f", conf, "-p", self.folder + "/pid"]


class SshD(Through, Server):
    peer, client = "ssh -D", None

    def missing(self):
        return needs() or Server.missing(self)

    def prepare(self):
        WEB.begin()
        Server.prepare(self)
        own = free_port()
        self.client = start([*self.command[:-1], "-D", f"127.0.0.1:{own}", "-N", self.command[-1]])
        wait_listening(own, self.client)
        self.port, self.pids = own, [self.client.pid, self.server.pid]

    def finish(self):
        if self.client:
            end(self.client)
            self.client.communicate()
        Server.finish(self)
        WEB.finish()


def sides(context):
    return [Weft(context), Direct(), SshD(), Proxy("microsocks", "microsocks"), Dante("dante", "danted")]
