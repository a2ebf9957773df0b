#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A standing cluster of two virtual machines, which weft up starts by ssh and a real sshd, over the kernel's own software RDMA: status, exec,
cast, cp, a node of each machine that is killed and comes back, and down. Afterwards nothing is left on either machine.

Usage: test_standing.py RUN WEFT PEER [TEST...]    (tests/vm/run; the command weft; multi_peer)
"""
import json
import os
import random
import shlex
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
import over_ssh  # noqa: E402
from over_ssh import LIMIT  # noqa: E402
from processes import patience, until  # noqa: E402

MIB = 1 << 20
BOOT_ID = "/proc/sys/kernel/random/boot_id"

# Describes all that must be the same in two trees, by programs that are not weft's: kinds, modes, times, numbers of links, what links lead to,
# contents, and which files take less space than their size.
DESCRIBE = r"""cd {folder} && export LC_ALL=C && find . -printf '%y %m %T@ %n %p -> %l\n' | sort && find . -type f -exec sha256sum {{}} + | sort &&
    find . -type f -printf '%S %p\n' | awk '{{ print ($1 < 0.5 ? "holes" : "full"), $2 }}' | sort"""


def here(command):
    return subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)


class Standing(over_ssh.Machines):
    # A machine that is not given a processor for a while is silent: that is no death.
    settings = {"pool": "16M", "deadline": "120s", "join_timeout": "60s", "liveness": f"{patience(20):.0f}s"}
    left = r"[w]eft (up|exec|cast|cp|status|down)|[s]leep 1007"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.write_hostfile()
        cls.addClassCleanup(cls.down)
        cls.weft_here("up", "--hostfile", cls.hostfile)

    @classmethod
    def down(cls):
        """Ends the cluster. What it keeps on both machines is its log, until it is started again."""
        cls.weft_here("down")
        for where, kept in (("there", cls.far), ("here", here)):
            found = kept("ls /tmp/weft-0/default && rm -r /tmp/weft-0").stdout.split()
            if set(found) - {"lock", "log", "start", "taken"}:
                raise AssertionError(f"left {where}: {found}")
        cls.nothing_stays()

    @classmethod
    def weft_here(cls, *args, code=0, **more):
        p = subprocess.run([cls.weft, *args], env=cls.env(), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False, **more)
        if p.returncode != code:
            logs = "".join(f"\n--- {where}\n{log('cat /tmp/weft-0/default/log').stdout}" for where, log in (("here", here), ("there", cls.far)))
            raise AssertionError(f"weft {shlex.join(args)}: {p.returncode}\n{p.stdout[-2000:]}\n{p.stderr[-2000:]}{logs}")
        return p

    def text(self, *args, **more):
        return self.weft_here(*args, **more).stdout.decode()

    def there(self, command):
        """What a command prints on the second machine. $weft in it is the command weft."""
        p = self.far(f"weft={self.weft}; {command}")
        self.assertEqual((p.returncode, p.stderr), (0, ""), command)
        return p.stdout

    def status(self, far=False):
        return json.loads(self.there("$weft status --json") if far else self.text("status", "--json"))

    def both(self, said):
        """Checks what a status says of two machines that are up. Returns their nodes, the first machine's first."""
        nodes = sorted(said["nodes"], key=lambda n: n["host"])
        self.assertEqual([(n["host"], n["place"], n["state"]) for n in nodes], [("vm1", 0, "up"), ("vm2", 0, "up")], said)
        numbers = {n["node"] for n in nodes}
        self.assertEqual({(x["from"], x["to"], x["state"], x["transport"]) for x in said["links"]},
                         {(a, b, "up", "rc") for a in numbers for b in numbers if a != b}, said)
        return nodes

    def test_status(self):
        said = self.status(), self.status(far=True)
        nodes = self.both(said[0])
        self.assertEqual(self.both(said[1]), nodes)
        self.assertEqual([one["control_node"] for one in said], [n["node"] for n in nodes])
        self.assertEqual(self.there(f"cat /proc/{nodes[1]['pid']}/comm"), "weft\n")

    def test_exec(self):
        """Programs run on the kernels that were named; input, both outputs and the status arrive. Those of a killed command end."""
        kernels = {"vm1": here(f"cat {BOOT_ID}").stdout, "vm2": self.there(f"cat {BOOT_ID}")}
        self.assertEqual(len(set(kernels.values())), 2)
        for host, kernel in kernels.items():
            p = self.weft_here("exec", "--on", host, "--", "sh", "-c", f"cat {BOOT_ID}; echo to err >&2; exit 7", code=7)
            self.assertEqual((p.stdout.decode(), p.stderr), (kernel, b"to err\n"))
        self.assertEqual(sorted(self.text("exec", "--tag", "--", "cat", BOOT_ID).splitlines(True)), [f"[{h}] {k}" for h, k in kernels.items()])
        self.assertEqual(self.there(f"$weft exec --on vm1 -- cat {BOOT_ID}"), kernels["vm1"])
        self.text("exec", "--", "sh", "-c", '[ "$(hostname)" = vm1 ] || exit 5', code=5)
        content = random.Random(1).randbytes(MIB)
        with open("/tmp/input", "wb") as file:
            file.write(content)
        self.assertEqual(self.weft_here("exec", "--on", "vm2", "--stdin", "/tmp/input", "--", "cat").stdout, content)
        p = subprocess.Popen([self.weft, "exec", "--", "sh", "-c", "sleep 1007 & echo begun; wait"], env=self.env(), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE)
        self.assertEqual([p.stdout.readline(), p.stdout.readline()], [b"begun\n"] * 2)
        p.kill()
        p.communicate(timeout=LIMIT)
        for where in (here, self.far):
            over = where(f"for i in $(seq {LIMIT * 5:.0f}); do pgrep -f '[s]leep 1007' || exit 0; sleep 0.2; done; exit 1")
            self.assertEqual((over.returncode, over.stderr), (0, ""))

    def same(self, source, *copies):
        """Checks that copies, each with the function that runs commands on its machine, are the same as a folder of the first machine."""
        wanted = here(DESCRIBE.format(folder=source))
        self.assertEqual((wanted.returncode, wanted.stderr), (0, ""))
        for where, folder in copies:
            got = where(DESCRIBE.format(folder=folder))
            self.assertEqual((got.stdout.splitlines(), got.stderr), (wanted.stdout.splitlines(), ""), folder)

    @staticmethod
    def write(path, size, seed, mode=0o644):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(random.Random(seed).randbytes(size))
        os.chmod(path, mode)

    def cast(self, *args):
        said = json.loads(self.text("cast", "--json", *args))
        self.assertEqual((said["ok"], {h["complete"] for h in said["hosts"]}, said["not_sent"]), (True, {True}, []), said)
        return said["sent_bytes"], sorted(h["host"] for h in said["hosts"])

    def test_cast(self):
        """A tree arrives on both machines; after a change, the change alone is sent."""
        src = "/tmp/tree/src"
        for name, size, mode in (("large", 3 * MIB + 77, 0o644), ("deep/er/script", 300, 0o750), ("deep/none", 0, 0o400), ("odd \\ näme", 5000, 0o606)):
            self.write(f"{src}/{name}", size, 2, mode)
        with open(f"{src}/holes", "wb") as file:
            file.write(b"begin")
            file.seek(9 * MIB)
            file.write(b"middle")
            file.truncate(12 * MIB)
        os.symlink("deep/er/script", f"{src}/link")
        os.symlink("/no/such/file", f"{src}/dangling")
        os.link(f"{src}/large", f"{src}/deep/hard")
        os.makedirs(f"{src}/empty", 0o711)
        os.utime(f"{src}/deep/none", ns=(10**18, 10**18 + 123_456_789))
        os.chmod(f"{src}/deep/er", 0o555)
        os.utime(f"{src}/deep", ns=(0, 10**18))
        sent, hosts = self.cast("--to", "vm1,vm2", src, "/tmp/tree/{host}/")
        self.assertEqual(hosts, ["vm1", "vm2"])
        self.assertGreater(sent, 3 * MIB)
        self.assertLess(sent, 8 * MIB, "holes were sent")
        self.same(src, (here, "/tmp/tree/vm1/src"), (self.far, "/tmp/tree/vm2/src"))
        self.write(f"{src}/deep/er/script", 301, 3, 0o700)
        os.unlink(f"{src}/link")
        self.assertEqual(self.cast("--delete", src, "all:/tmp/tree/{host}/"), (301, ["vm2"]))
        self.same(src, (self.far, "/tmp/tree/vm2/src"))

    def test_cp(self):
        """From the other machine to this one; and by a command of the other one, from here to there."""
        self.there("mkdir -p /tmp/cp/a/b && head -c 2000000 /dev/urandom >/tmp/cp/a/b/random && chmod 640 /tmp/cp/a/b/random && ln -s b /tmp/cp/a/c")
        self.text("cp", "vm2:/tmp/cp/a", "/tmp/cp/got/")
        self.there("cd /tmp/cp && $weft cp vm1:/tmp/cp/got/a back/ 2>&1")
        self.same("/tmp/cp/got/a", (self.far, "/tmp/cp/a"), (self.far, "/tmp/cp/back/a"))

    def interrupted_cast(self, *args, there=":"):
        """Casts a file, so slowly that the end is far away. When the other machine has more of it than before, a command runs there, and the
        process of the cast is returned."""
        size = "du -ck /tmp/cut/.weft-cast-*.part 2>/dev/null | sed -n 's/.total$//p'"
        before = int(self.far(size).stdout)
        p = subprocess.Popen([self.weft, "cast", "--bwlimit", "512K", *args], env=self.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            self.there(f"for i in $(seq {LIMIT * 3:.0f}); do [ $({size}) -lt {before + 1024} ] || break; sleep 0.3; done; {there}")
        except BaseException:
            p.kill()
            self.fail(p.communicate(timeout=LIMIT))
        return p

    def test_cast_interrupted(self):
        """A cast is interrupted at the source, and another one at the receiver; the same command sends what is missing."""
        size = 16 * MIB
        self.write("/tmp/cut/file", size, 4)
        args = ["/tmp/cut/file", "vm2:/tmp/cut/file"]
        p = self.interrupted_cast(*args)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual(p.returncode, 128 + signal.SIGINT, out + err)
        p = self.interrupted_cast(*args, there="pkill -KILL -f '[c]ast --as-node' && [ ! -e /tmp/cut/file ]")
        out, err = p.communicate(timeout=LIMIT)
        self.assertEqual((p.returncode, "vm2" in err), (1, True), out + err)
        sent, _ = self.cast(*args)
        self.assertLessEqual(sent, size - 2 * MIB)
        look = "cd /tmp/cut && sha256sum file && ls -A"
        self.assertEqual(self.there(look), here(look).stdout)

    def test_killed(self):
        """The node of each machine is killed, that of the first one last. Each comes back with a new number, and all works."""
        for host, where in (("vm2", self.far), ("vm1", here)):
            with self.subTest(host):
                self.killed(host, where)
        self.write("/tmp/again/file", MIB, 5)
        self.assertEqual(self.cast("/tmp/again", "vm2:/tmp/"), (MIB, ["vm2"]))
        self.same("/tmp/again", (self.far, "/tmp/again"))

    def killed(self, host, where):
        old = [n for n in self.both(self.status()) if n["host"] == host][0]
        self.assertEqual(where(f"kill -KILL {old['pid']}").returncode, 0)
        for far in (host == "vm1", host == "vm2"):  # first on the machine whose node lives
            def back(far=far):
                new = [n for n in self.status(far)["nodes"] if n["host"] == host]
                return [n["state"] for n in new] == ["up"] and new[0]["node"] > old["node"] and new[0]["pid"] != old["pid"]
            until(f"the node of {host} is back", back, LIMIT)
            self.both(self.status(far))
        self.assertIn(f"weft exec: node {old['node']} is ", self.weft_here("exec", "--on", str(old["node"]), "true", code=255).stderr.decode())
        self.assertEqual(sorted(self.text("exec", "--", "hostname").split()), ["vm1", "vm2"])
        self.assertEqual(self.there("$weft exec --on vm1 -- hostname"), "vm1\n")


if __name__ == "__main__":
    over_ssh.main(__file__, ["--modules", "rdma_rxe"], over_ssh.SSHD_CONFIG, "vm2", 300, 300)
