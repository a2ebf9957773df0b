#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""weft run and weft map --hostfile between two virtual machines, by ssh and a real sshd, over the kernel's own software RDMA.

Everything that sshd needs is made for the test: the host's key, the user's, and the files that say whom to trust. It runs
in the second machine only; the first has the launcher and node 0, and what is checked on the second is asked by ssh.
Without WEFT_TEST_LONG=1 it is a cluster of which a node is killed, one that is interrupted, and two jobs of map.

Usage: test_ssh.py RUN WEFT PEER    (tests/vm/run; the command weft; multi_peer)
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "multi"))
import processes  # noqa: E402

SSHD = "/usr/sbin/sshd"
LIMIT = processes.patience(100)  # seconds until what should have ended is called a failure; an emulated machine is slow
LONG = os.environ.get("WEFT_TEST_LONG") == "1"
long_only = unittest.skipUnless(LONG, "one of the long forms (WEFT_TEST_LONG=1)")

SSHD_CONFIG = """
ListenAddress 10.77.0.2
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile /run/sshd.pid
StrictModes no
PasswordAuthentication no
UsePAM no
LogLevel ERROR
KexAlgorithms curve25519-sha256
"""

# The first machine tests; the second serves until the first has tested. Accounts are this host's, which may be locked, and whose
# shell may begin with what somebody has set up there. Neither is of this test, nor are keys that take an emulated processor seconds.
BOTH = """
if [ $VM_INDEX = 1 ]; then exec python3 "$@"; fi
grep -q ^sshd: /etc/passwd || echo sshd:x:999:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd
sed -i 's,^root:.*,root:x:0:0:root:/root:/bin/sh,' /etc/passwd
rm -f /etc/shadow; echo 'root:*:20000:0:99999:7:::' >/etc/shadow
mkdir -p /run/sshd
exec {sshd} -D -e -f {folder}/sshd_config
"""


# --- in the first machine ---

class Ssh(unittest.TestCase):
    maxDiff = None
    weft = peer = None
    ssh = []
    other = "root@vm2"
    hosts = [{"ssh": "vm1", "ips": ["10.77.0.1"]}, {"ssh": other, "ips": ["10.77.0.2"]}]

    @classmethod
    def setUpClass(cls):
        processes.until("sshd answers", lambda: cls.far("true").returncode == 0, LIMIT)

    @classmethod
    def tearDownClass(cls):
        cls.far("kill $(cat /run/sshd.pid)")

    lines, jobs = 200_000, 2  # of test_map: its input, and how many of its two jobs

    @classmethod
    def far(cls, command):
        """Runs a command on the second machine. All use one connection, because making one takes a second or two here."""
        return subprocess.run([*cls.ssh, "-oControlMaster=auto", "-oControlPath=/tmp/way-%h", "-oControlPersist=yes", cls.other,
                               command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * LIMIT, check=False)

    def start(self, *args, sub="run", stdout=subprocess.PIPE, **env):
        with open("/tmp/hosts.json", "w", encoding="utf-8") as file:
            json.dump({"weft": 1, "hosts": self.hosts, "settings": {"pool": "8M", "deadline": "120s", "join_timeout": "60s"}}, file)
        return subprocess.Popen([self.weft, sub, "--hostfile", "/tmp/hosts.json", "--nodes", "2", *args], text=True,
                                env=processes.clean_env(**{"WEFT_SSH": " ".join(self.ssh), **env}), start_new_session=True,
                                stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE)

    def run_weft(self, *args, **env):
        process = self.start(*args, **env)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def nothing_stays(self):
        """Checks that no process of a node or of weft, and no file, is left on either machine. Processes that are ending get some time."""
        look = f"""for i in $(seq {LIMIT * 5}); do
            left=$(pgrep -af '[a]s-node|[m]ulti_peer|[s]leep 1007'; ls -A /dev/shm /tmp | grep weft)
            [ "$left" ] || exit 0
            sleep 0.2
        done
        echo "$left"; exit 1"""
        for where, left in (("there", self.far(look)), ("here", subprocess.run(
                ["sh", "-c", look], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False))):
            self.assertEqual((left.returncode, left.stdout), (0, ""), f"left {where}")

    def peers(self, times, end, **env):
        code, out, err = self.run_weft("-t", "--", "sh", "-c", f"hostname; echo to err >&2; exec {self.peer} {times} {end}", **env)
        for k in (0, 1):
            self.assertIn(f"[{k}] vm{k + 1}\n", out)
            self.assertIn(f"[{k}] node {k} of 2: all is well\n", out)
            self.assertIn(f"[{k}] to err\n", err)
        self.nothing_stays()
        return code, out, err

    def test_node_killed(self):
        """A cluster checks every byte until the node on the other machine is killed; this is noticed and reported."""
        code, out, err = self.peers(1, "kill", WEFT_LIVENESS="30s")
        self.assertEqual(code, 137, out + err)
        self.assertIn("weft run: node 1 (on root@vm2) was killed by SIGKILL\n", err)
        self.assertIn("[0] node 0: node 1 is dead after", out)

    def test_map(self):
        """A job is shared with the other machine, which has none of its files. What runs here waits until something has
        come from there; the second time, until the node there is killed."""
        with open("/tmp/in", "w", encoding="utf-8") as file:
            file.writelines(f"{n}\n" for n in range(self.lines))
        for kill, wait, mode in ((False, "[ -s /tmp/out ]", "--unordered"), (True, "[ -e /tmp/killed ]", "--no-progress"))[-self.jobs:]:
            command = f"[ {{node}} = 1 ] || until {wait}; do sleep 0.2; done; : >/tmp/ran-{{#}}; cat; sleep 1007 &"
            with open("/tmp/out", "w+", encoding="utf-8") as out:
                process = self.start("--memory", "24M", "--slots", "1", "--block", "100K", mode, "/tmp/in", "--", "sh", "-c",
                                     command, sub="map", stdout=out)
                if kill:
                    there = self.far("until [ $(ls /tmp | grep -c ran-) -gt 1 ]; do sleep 0.2; done; "
                                     "kill -KILL $(pgrep -of '[m]ap --as-node')")
                    self.assertEqual((there.returncode, there.stderr), (0, ""))
                    with open("/tmp/killed", "w", encoding="utf-8"):
                        pass
                _, err = process.communicate(timeout=2 * LIMIT)
                out.seek(0)
                found = list(map(int, out))
            self.assertEqual((process.returncode, (found if kill else sorted(found)) == list(range(self.lines))), (0, True), err)
            self.assertEqual("weft map: node 1 is gone; its pieces run again elsewhere\n" in err, kill, err)
            self.nothing_stays()
            self.far("rm -f /tmp/ran-*")

    @long_only
    def test_one_cluster(self):
        code, out, err = self.peers(10, "leave")
        self.assertEqual((code, len(out.splitlines()), len(err.splitlines())), (0, 4, 2), out + err)

    def begun(self, *args):
        """Starts two nodes that sleep, each with a child process, and waits until both have reported that."""
        process = self.start("-t", *args, "--", "sh", "-c", "sleep 1007 & echo begun; wait")
        said = [process.stdout.readline(), process.stdout.readline()]
        self.assertEqual(sorted(said), ["[0] begun\n", "[1] begun\n"])
        return process

    def test_interrupted(self):
        process = self.begun()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, err), (128 + signal.SIGINT, ""))
        self.nothing_stays()

    @long_only
    def test_launcher_killed(self):
        process = self.begun()
        process.kill()
        process.communicate(timeout=LIMIT)
        self.nothing_stays()

    @long_only
    def test_connection_lost(self):
        """sshd's process for the connection is killed: the remote node ends with it, and the launcher reports which ssh failed."""
        process = self.begun("-k")
        self.far("kill -KILL $(ps -o ppid= -p $(pgrep -of '[a]s-node'))")
        _, err = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 255, err)
        self.assertIn("node 1 (on root@vm2): ssh failed", err)
        self.nothing_stays()

    @long_only
    def test_exit_codes(self):
        code, _, err = self.run_weft("--", "sh", "-c", "[ $WEFT_RANK = 0 ] || exit 7")
        self.assertEqual((code, err), (7, "weft run: node 1 (on root@vm2) exited with 7\n"))
        code, out, err = self.run_weft("--", "sh", "-c", "if [ $WEFT_RANK = 1 ]; then exec /no/such/program; fi")
        self.assertEqual((code, out), (127, ""), err)
        self.assertIn("node 1 (on root@vm2) exited with 127", err)

    @long_only
    def test_host_not_known(self):
        """A host that pretends to be the other machine, with another key, gets no program, secret or data."""
        code, out, err = self.run_weft("-k", "--", "sleep", "1007", WEFT_SSH=" ".join(self.ssh).replace("/known", "/unknown"))
        self.assertEqual((code, out), (255, ""), err)
        self.assertIn("Host key verification failed", err)
        self.nothing_stays()


def setting():
    folder, Ssh.weft, Ssh.peer = os.environ["FOLDER"], os.environ["COMMAND"], os.environ["PEER"]
    Ssh.ssh = ["ssh", "-F", "none", "-i", f"{folder}/user", "-o", f"UserKnownHostsFile={folder}/known", "-o",
               "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]


# --- on the host ---

def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "of-the-test", "-f", path], check=True)
    with open(path + ".pub", encoding="utf-8") as file:
        return file.read()


def on_machines(test, options, config, names, short, long):
    """Runs the file `test` in the first machine. `names`: those of the second one, as ssh knows it."""
    run, weft, peer = (os.path.abspath(path) for path in sys.argv[1:4])
    if not os.path.exists(SSHD):
        print(f"no {SSHD}: install openssh-server (tools/deps test)", file=sys.stderr)
        return 1 if os.environ.get("CI") else 77
    with tempfile.TemporaryDirectory(prefix="vm-ssh-") as folder:
        key(f"{folder}/user")
        for name, text in (("known", f"{names} " + key(f"{folder}/host")), ("unknown", ""),
                           ("sshd_config", config.format(folder=folder))):
            with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        script = BOTH.format(folder=folder, sshd=SSHD)
        slowness = processes.slowness()
        # No paths of programs among the arguments: the test looks for processes that have them.
        status = subprocess.run([sys.executable, run, "--machines", "2", *options, "--timeout",
                                 str(int((long if LONG else short) * slowness)), "--see", folder, "--env", "WEFT_TEST_LONG",
                                 "--env", f"TEST_SLOWNESS={slowness:.2f}", "--env", f"PEER={peer}",
                                 "--env", f"COMMAND={weft}", "--env", f"FOLDER={folder}", "--",
                                 "sh", "-c", script, "sh", os.path.abspath(test), "--inside", *sys.argv[4:]],
                                stdin=subprocess.DEVNULL, check=False).returncode
    return 1 if status == 77 and os.environ.get("CI") else status


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        setting()
        unittest.main(argv=sys.argv[:1], verbosity=2)
    sys.exit(on_machines(__file__, ["--modules", "rdma_rxe"], SSHD_CONFIG, "vm2", 400, 900))
