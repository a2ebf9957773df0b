# SPDX-License-Identifier: MIT
"""What the tests of two virtual machines with ssh between them share: machines with a real sshd in the second one, and commands for both.

Everything that sshd needs is made for the test: the host's key, the user's, and the files that say whom to trust. It runs
in the second machine only; the first has the commands of weft, and what is checked on the second is asked by ssh.

A test calls main() with its own file. Outside, this boots the machines, where the same file runs again, with --inside.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "multi"))  # last: it has a test_ssh.py, too
import processes  # noqa: E402

SSHD = "/usr/sbin/sshd"
LIMIT = processes.patience(100)  # seconds until what should have ended is called a failure; an emulated machine is slow
LONG = os.environ.get("WEFT_TEST_LONG") == "1"
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

class Machines(unittest.TestCase):
    maxDiff = None
    weft = peer = None
    ssh = []
    other = "root@vm2"
    hosts = [{"ssh": "vm1", "ips": ["10.77.0.1"]}, {"ssh": other, "ips": ["10.77.0.2"]}]
    settings = {"pool": "8M", "deadline": "120s", "join_timeout": "60s"}
    hostfile = "/tmp/hosts.json"
    left = "[a]s-node|[m]ulti_peer|[s]leep 1007"  # what names a process that the tests have started

    @classmethod
    def setUpClass(cls):
        processes.until("sshd answers", lambda: cls.far("true").returncode == 0, LIMIT)
        cls.addClassCleanup(cls.far, "kill $(cat /run/sshd.pid)")

    @classmethod
    def far(cls, command):
        """Runs a command on the second machine. All use one connection, because making one takes a second or two here."""
        return subprocess.run([*cls.ssh, "-oControlMaster=auto", "-oControlPath=/tmp/way-%h", "-oControlPersist=yes", cls.other,
                               command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=2 * LIMIT, check=False)

    @classmethod
    def env(cls, **more):
        return processes.clean_env(**{"WEFT_SSH": " ".join(cls.ssh), **more})

    @classmethod
    def write_hostfile(cls):
        with open(cls.hostfile, "w", encoding="utf-8") as file:
            json.dump({"weft": 1, "hosts": cls.hosts, "settings": cls.settings}, file)

    @classmethod
    def nothing_stays(cls):
        """Checks that no process of a node or of weft, and no file, is left on either machine. Processes that are ending get some time."""
        look = f"""for i in $(seq {LIMIT * 5:.0f}); do
            left=$(pgrep -af '{cls.left}'; ls -A /dev/shm /tmp | grep weft)
            [ "$left" ] || exit 0
            sleep 0.2
        done
        echo "$left"; exit 1"""
        for where, left in (("there", cls.far(look)), ("here", subprocess.run(
                ["sh", "-c", look], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False))):
            if (left.returncode, left.stdout) != (0, ""):
                raise AssertionError(f"left {where}: {left}")


def setting():
    folder, Machines.weft, Machines.peer = os.environ["FOLDER"], os.environ["COMMAND"], os.environ["PEER"]
    Machines.ssh = ["ssh", "-F", "none", "-i", f"{folder}/user", "-o", f"UserKnownHostsFile={folder}/known", "-o",
                    "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]


# --- on the host ---

def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "of-the-test", "-f", path], check=True)
    with open(path + ".pub", encoding="utf-8") as file:
        return file.read()


def on_machines(test, options, config, names, short, long):
    """Runs the file `test` in the first machine. `names`: those of the second one, as ssh knows it. `short`, `long`: after how many seconds
    the machines end on a fast and idle host, whatever they do; the latter with WEFT_TEST_LONG=1."""
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


def main(test, options, config, names, short, long):
    """The program of the file `test`: see on_machines()."""
    if sys.argv[1] == "--inside":
        setting()
        unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
    sys.exit(on_machines(test, options, config, names, short, long))
