#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Nodes that mpirun, prterun or srun starts: their ranks, how they join, and what happens when a node fails or the launcher ends.

Usage: test_pmix.py WEFT DIRECTORY-OF-TESTS DIRECTORY-OF-EXAMPLES SOFTVERBS VERBS-LIBRARY [TEST...]
"""
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from processes import alive, clean_env, patience, until  # noqa: E402

LIMIT = patience(60)
LONG = bool(os.environ.get("WEFT_TEST_LONG"))  # each start of mpirun takes a second or more
WEFT, TESTS, EXAMPLES, SOFTVERBS, VERBS = [os.path.abspath(path) for path in sys.argv[1:6]]
HELLO, PEER, AGAIN, MPI = EXAMPLES + "/hello", TESTS + "/multi_peer", TESTS + "/multi_again", TESTS + "/multi_with_mpi"

# Used instead of ssh: runs a command on a "host", which is a network namespace with a host name of its own.
AGENT = """#!/bin/sh
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""

# Three hosts on one network. Each also has an inner network with the same address on every host, as container engines make them.
HOSTS = """set -e
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link add name br0 type bridge
ip link set br0 up
for k in 1 2 3; do
    ip netns add h$k
    ip -n h$k link set lo up
    ip -n h$k link add name inner type veth peer name other
    ip -n h$k link set other up
    ip -n h$k addr add 172.17.0.1/16 dev inner
    ip -n h$k link set inner up
    ip link add name v$k type veth peer name eth0 netns h$k
    ip link set v$k master br0 up
    ip -n h$k addr add 10.77.0.$k/24 dev eth0
    ip -n h$k link set eth0 up
done
ip netns exec h1 unshare --uts sh -c 'hostname h1; exec "$@"' sh "$@"
exit # this shell holds the network that the hosts are on
"""


def can_unshare():
    try_it = "mount -t tmpfs tmpfs /run && ip link add name br0 type bridge && unshare --uts true"
    return subprocess.run(["unshare", "-r", "-n", "-m", "sh", "-c", try_it], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def open_mpi_4():
    """Whether mpirun is of Open MPI 4. From 5 on, it is prterun."""
    return bool(shutil.which("mpirun")) and "(Open MPI) 4" in subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout


OPEN_MPI_4 = open_mpi_4()
CONTINUOUS = ["--runtime-options", "continuous,error-nonzero-status=false"]  # if a process dies or fails, the others go on


class Launched:
    """What holds with each launcher."""
    maxDiff = None
    command = []
    recovers = []

    def setUp(self):
        # A short path, because Open MPI makes sockets there. Files that it leaves when it is killed are removed with the folder.
        self.tmp = tempfile.TemporaryDirectory(prefix="weft-pmix-", dir="/tmp")
        self.addCleanup(self.tmp.cleanup)

    def environment(self, **more):
        return clean_env(TMPDIR=self.tmp.name, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_plm="isolated",
                         OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_btl="self,vader" if OPEN_MPI_4 else "self,sm", PRTE_ALLOW_RUN_AS_ROOT="1",
                         PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)

    def run_mpi(self, n, *command, options=(), **more):
        done = subprocess.run([*self.command, "-n", str(n), *options, *command], env=self.environment(**more), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        return done.returncode, done.stdout, done.stderr

    def only(self, rank, what, rest):
        """A command that does `what` on one rank before `rest`."""
        return "sh", "-c", f'[ "$PMIX_RANK" = {rank} ] && {{ {what}; }}; exec {rest}'

    def run_heard(self, n, rank, what, **more):
        """As run_mpi() with only(), of HELLO; but what the nodes say goes to a file, which no launcher's end cuts off."""
        said = self.tmp.name + "/said"
        with open(said, "w", encoding="utf-8"):
            pass
        code, out, _ = self.run_mpi(n, *self.only(rank, what, f"{HELLO} 2>>{said}"), **more)
        with open(said, encoding="utf-8") as file:
            return code, out, file.read()

    def test_who_they_are(self):
        code, out, err = self.run_mpi(4, HELLO)
        self.assertEqual((code, err), (0, ""), out)
        self.assertEqual(sorted(out.splitlines()), [f"Hello from node {k} of 4" for k in range(4)])

    def test_memory_and_messages(self):
        code, out, err = self.run_mpi(3, PEER, "5", "leave")
        self.assertEqual((code, err), (0, ""), out)
        self.assertEqual(sorted(out.splitlines()), [f"node {k} of 3: all is well" for k in range(3)])

    def test_again(self):
        """A process may open a node after it has closed another."""
        code, out, err = self.run_mpi(3, AGAIN)
        self.assertEqual((code, err), (0, ""), out)
        self.assertEqual(out, "round 0: 3 nodes\nround 1: 3 nodes\nround 2: 3 nodes\n")

    @unittest.skipUnless(os.path.exists(MPI), "no mpicc (Debian: libopenmpi-dev) when this was built")
    def test_one_fails_before(self):
        """One node fails, by a setting or for lack of memory: all nodes report why at once, without waiting for the join time-out."""
        setting, memory = ("WEFT_POOL=7", "WEFT_POOL='7': expected a size"), ("WEFT_POOL=900G WEFT_POOL_LOCK=1", "a pool of 900 GiB does not fit")
        for what, why in (setting, memory) if LONG else (memory,):
            began = time.monotonic()
            _, out, err = self.run_heard(3, 1, "export " + what, options=self.recovers, WEFT_JOIN_TIMEOUT="1000s")
            self.assertEqual(out, "")
            self.assertEqual(err.count("hello: open: " + why), 1, err)
            self.assertEqual(err.count("failed before joining: " + why), 2, err)
            self.assertLess(time.monotonic() - began, LIMIT / 2)

    def test_one_does_not_come(self):
        code, out, err = self.run_heard(3, 1, "exec sleep 1000", WEFT_JOIN_TIMEOUT="2s")
        self.assertNotEqual(code, 0)
        self.assertEqual(out, "")
        self.assertIn("hello: open: not all processes of the job called weft_open() within 2.0 s", err)
        self.assertIn("node 1 of 3 is missing", err)

    def test_one_dies(self):
        """A node dies: the other nodes go on if the launcher does not end them."""
        code, out, err = self.run_mpi(3, PEER, "2", "kill", options=self.recovers)
        for k in range(2):
            self.assertIn(f"node {k}: node 2 is dead", out, err)
        if LONG:
            code, out, err = self.run_mpi(3, PEER, "2", "kill")
            self.assertEqual(code, 128 + signal.SIGKILL, err)

    def test_launcher_is_killed(self):
        launcher = subprocess.Popen([*self.command, "-n", "3", PEER, "1", "cut"], env=self.environment(), stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            while "cut here" not in launcher.stdout.readline():
                self.assertIsNone(launcher.poll())
            with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children", encoding="ascii") as file:
                nodes = [int(word) for word in file.read().split()]
            self.assertEqual(len(nodes), 3)
            self.assertTrue(all(map(alive, nodes)))
        finally:
            launcher.kill()
            launcher.wait()
            launcher.stdout.close()
        until("the nodes have ended", lambda: not any(map(alive, nodes)), patience(10))


@unittest.skipUnless(shutil.which("prterun"), "no prterun (Debian 13: openmpi-bin)")
class Prterun(Launched, unittest.TestCase):
    command = ["prterun", "--map-by", ":OVERSUBSCRIBE"]
    recovers = CONTINUOUS


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun (Debian: openmpi-bin)")
class Mpirun(Launched, unittest.TestCase):
    command = ["mpirun", "--map-by", ":OVERSUBSCRIBE"]
    recovers = ["--enable-recovery"] if OPEN_MPI_4 else CONTINUOUS

    def test_config_says_where_from(self):
        code, out, err = self.run_mpi(2, "sh", "-c", f'exec {WEFT} config --json >"{self.tmp.name}/$PMIX_RANK.json"')
        self.assertEqual((code, out, err), (0, "", ""))
        for rank in range(2):
            with open(f"{self.tmp.name}/{rank}.json", encoding="utf-8") as file:
                rows = {row["name"]: row for row in json.load(file)}
            self.assertEqual([(rows[name]["value"], rows[name]["from"]) for name in ("rank", "size")], [(str(rank), "PMIx"), ("2", "PMIx")])

    def test_what_is_said_otherwise_counts(self):
        """A program without a launcher, and `weft run` below mpirun."""
        code, out, err = self.run_mpi(2, HELLO, WEFT_SIZE="1")
        self.assertEqual((code, out, err), (0, "Hello from node 0 of 1\n" * 2, ""))
        code, out, err = self.run_mpi(1, WEFT, "run", "-n", "2", "--", HELLO)
        self.assertEqual((code, sorted(out.splitlines()), err), (0, ["Hello from node 0 of 2", "Hello from node 1 of 2"], ""))

    def test_secret(self):
        """A secret that is set must be the same on all nodes; then it is used instead of a random one."""
        if LONG:
            code, out, err = self.run_mpi(2, HELLO, WEFT_SECRET="sesame")
            self.assertEqual((code, len(out.splitlines()), err), (0, 2, ""))
        _, out, err = self.run_heard(2, 1, "export WEFT_SECRET=sesame", options=self.recovers, WEFT_JOIN_TIMEOUT="2s")
        self.assertEqual(out, "")
        self.assertIn("cluster secret is wrong or missing", err)

    def test_no_library(self):
        code, _, err = self.run_mpi(2, HELLO, WEFT_PMIX_LIBRARY=self.tmp.name + "/libpmix.so.2")
        self.assertNotEqual(code, 0)
        self.assertIn("libpmix2", err)
        self.assertIn("weft run", err)

    def test_no_launcher(self):
        """The environment still has the variables of a launcher that has ended."""
        env = self.environment(PMIX_RANK="0", PMIX_NAMESPACE="gone", PMIX_SERVER_URI41="gone.0;tcp4://127.0.0.1:9")
        done = subprocess.run([HELLO], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("PMIX_NAMESPACE=gone", done.stderr)
        self.assertIn("WEFT_SIZE=1", done.stderr)

    def test_with_mpi(self):
        # MPI_Init() of Open MPI 5.0.7 fails if the process already uses PMIx.
        for first in ("mpi",) if not OPEN_MPI_4 else ("mpi", "weft") if LONG else ("weft",):
            code, out, err = self.run_mpi(3, MPI, first)
            self.assertEqual((code, err), (0, ""), out)
            self.assertEqual(sorted(out.splitlines()), [f"round {r}: {k} of 3, {k} of 3, sum 7, barrier 0" for r in range(2) for k in range(3)])

    def on_hosts(self, **more):
        """Three hosts, on which mpirun starts nodes with AGENT instead of ssh."""
        def path(name, text, mode=0o644):
            with open(f"{self.tmp.name}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(file.name, mode)
            return file.name
        agent = path("agent", AGENT, 0o755)
        hosts = path("hosts", "h1 slots=1\nh2 slots=1\nh3 slots=1\n")
        env = self.environment(OMPI_MCA_plm_rsh_agent=agent, OMPI_MCA_oob_tcp_if_include="eth0", WEFT_LIVENESS=f"{patience(30):.0f}s", **more)
        env["OMPI_MCA_plm"] = "rsh"
        done = subprocess.run(["unshare", "-r", "-n", "-m", "sh", "-c", HOSTS, "sh", "mpirun", "--hostfile", hosts, "-n", "3", "sh", "-c",
                               f"SOFTVERBS_HOST=$PMIX_RANK exec {PEER} 3 leave"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=2 * LIMIT, check=False)
        # mpirun warns if its child has started the agent before mpirun has moved the child to a process group of its own.
        err = "".join(line for line in done.stderr.splitlines(keepends=True) if "plm:rsh: Warning: setpgid(" not in line)
        self.assertEqual((done.returncode, err), (0, ""), done.stdout)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"node {k} of 3: all is well" for k in range(3)])

    @unittest.skipUnless(can_unshare(), "no network namespaces")
    def test_hosts(self):
        """With a fabric of RDMA devices between the hosts."""
        env = dict(SOFTVERBS_DIR=self.tmp.name, SOFTVERBS_FABRIC="test", WEFT_VERBS_LIBRARY=VERBS, WEFT_TRANSPORT="rc")
        made = [SOFTVERBS, "up", "--fabric", "test", "--profile", "generic", "switch", "3"]
        subprocess.run(made, env=dict(os.environ, **env), stdout=subprocess.DEVNULL, check=True)
        try:
            self.on_hosts(**env)
        finally:
            subprocess.run([SOFTVERBS, "down", "--fabric", "test"], env=dict(os.environ, **env), stdout=subprocess.DEVNULL, check=False)

    @unittest.skipUnless(can_unshare(), "no network namespaces")
    def test_hosts_without_devices(self):
        """Over TCP. Node 0 listens at all its addresses, and takes for libfabric the one that the others use."""
        self.on_hosts(WEFT_TRANSPORT="ofi", LD_LIBRARY_PATH="")  # softverbs would say that it has no fabric


# A private Slurm with one host, this one; all its files are in the test's folder.
SLURM = """ClusterName=weft-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
DAEMONS = [shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin") for name in ("munged", "slurmctld", "slurmd")]


@unittest.skipUnless(shutil.which("srun") and all(DAEMONS), "no Slurm (Debian: slurm-client, slurmctld, slurmd, munge)")
class Srun(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="weft-srun-", dir="/tmp")
        self.addCleanup(self.tmp.cleanup)
        self.daemons = []
        self.addCleanup(self.end)
        folder = self.tmp.name
        sockets = [socket.socket() for _ in range(2)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        with open(folder + "/slurm.conf", "w", encoding="utf-8") as file:
            file.write(SLURM.format(host=os.uname().nodename.split(".")[0], user=pwd.getpwuid(os.getuid()).pw_name, dir=folder, ports=ports))
        with open(os.open(folder + "/key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        self.env = clean_env(SLURM_CONF=folder + "/slurm.conf", TMPDIR=folder)
        munged, control, host = DAEMONS
        self.start(munged, "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/key", f"--pid-file={folder}/munge.pid",
                   f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        until("munged listens", lambda: os.path.exists(folder + "/munge.socket"), LIMIT)
        self.start(control, "-D", "-f", folder + "/slurm.conf")
        self.start(host, "-D", "-f", folder + "/slurm.conf")
        until("the host is there", lambda: "idle" in self.output("sinfo", "-h", "-o", "%t"), LIMIT)

    def start(self, *command):
        with open(self.tmp.name + "/daemons.log", "ab") as log:
            self.daemons.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def output(self, *command):
        return subprocess.run(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=LIMIT, check=False).stdout

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=patience(10))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def srun(self, n, *command, **more):
        done = subprocess.run(["srun", "--mpi=pmix", "-O", "-n", str(n), *command], env=dict(self.env, **more), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_srun(self):
        """Ranks; a node that fails before joining; a node that is missing; a node that dies."""
        code, out, err = self.srun(3, HELLO)
        self.assertEqual((code, sorted(out.splitlines()), err), (0, [f"Hello from node {k} of 3" for k in range(3)], ""))
        code, out, err = self.srun(2, "sh", "-c", f"[ $PMIX_RANK = 1 ] && export WEFT_POOL=7; exec {HELLO}", WEFT_JOIN_TIMEOUT="1000s")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("node 1 (pid ", err)
        self.assertIn("failed before joining: WEFT_POOL='7'", err)
        code, out, err = self.srun(2, "sh", "-c", f"[ $PMIX_RANK = 1 ] && exec sleep 6; exec {HELLO}", WEFT_JOIN_TIMEOUT="2s")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("node 1 of 2 is missing", err)
        code, out, err = self.srun(2, PEER, "2", "kill")
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertIn("node 0: node 1 is dead", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[6:])
