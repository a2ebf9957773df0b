#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/vm/run: tests of its documented behaviour, in as few boots as possible.

Usage: test_vm.py RUN. Exits 77 where there are no virtual machines to be had, except under CI (CI set), which must
install what they need.
"""
import os
import select
import signal
import subprocess
import sys
import time
import unittest

RUN = os.path.abspath(sys.argv.pop(1))
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(RUN)))
MARK = f"VM_TEST_MARK={os.getpid()}"  # what the harness starts inherits it
RETRY = "client() { until ibv_rc_pingpong -g 1 -n 200 \"$1\" 2>/dev/null; do sleep 0.1; done; }\n"


def environment():
    name, _, value = MARK.partition("=")
    return {**os.environ, name: value}


def start(*arguments, **more):
    return subprocess.Popen([sys.executable, RUN, *arguments], cwd=REPOSITORY, env=environment(),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err.decode()


def started_and_alive():
    """The running processes that have the mark: those that the harness has started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                carries = MARK.encode() in file.read().split(b"\0")
            with open(f"/proc/{pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if carries and state not in (b"Z", b"X"):
            found.append(int(pid))
    return found


def wait_for(stream, text):
    """Reads until the text has come: output comes when it is written, not at the end."""
    said = b""
    limit = time.monotonic() + 100
    while text not in said:
        readable, _, _ = select.select([stream], [], [], max(0, limit - time.monotonic()))
        data = os.read(stream.fileno(), 4096) if readable else b""
        if not data:
            raise AssertionError(f"no {text!r}, only {said!r}")
        said += data


class Vm(unittest.TestCase):
    def tearDown(self):
        limit = time.monotonic() + 60
        while started_and_alive() and time.monotonic() < limit:
            time.sleep(0.05)  # processes that were killed may still be ending
        self.assertEqual(started_and_alive(), [])

    def test_use(self):
        code, out, _ = run("--help")
        self.assertEqual(code, 0)
        for word in (b"--machines", b"VM_PEER", b"124", b"tests/vm/run --"):
            self.assertIn(word, out)
        for wrong in ([], ["--"], ["--machines", "3", "true"], ["--user", "no-such-user", "true"],
                      ["--sysctl", "nothing", "true"], ["--timeout", "0", "true"], ["--modules", "a b", "true"],
                      ["--env", "=1", "true"], ["--see", "/no/such/folder", "true"], ["--unknown", "true"]):
            code, out, err = run(*wrong)
            self.assertEqual((code, out), (2, b""), wrong)
            self.assertIn("tests/vm/run: error:", err)

    def test_without_qemu(self):
        result = subprocess.run([sys.executable, RUN, "true"], env={"PATH": "/nowhere", "HOME": "/nowhere"},
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 77)
        self.assertIn("apt-get install", result.stderr)

    def test_rdma_and_death_by_signal(self):
        """Programs communicate over the device; both outputs are separate and complete; processes that the command leaves do not matter."""
        code, out, err = run("--modules", "rdma_rxe", "--env", "WORD=two words", "--", "bash", "-c", RETRY + """
            set -e
            [ $(hostname) = vm1 ] && [ $VM_INDEX = 1 ] && [ "$WORD" = 'two words' ] && [ "$PWD" = "$0" ]
            [ -z "$VM_TEST_MARK" ] && [ -z "$(cat)" ]
            for f in $(find /tmp /dev/shm -mindepth 1 -maxdepth 1); do # nothing, unless the repository is in there
                case $PWD/ in $f/*) ;; *) exit 9 ;; esac
            done
            cmp tests/vm/run "$1"
            echo changed >tests/vm/run
            ibv_devinfo -d rxe0 -v
            ibv_rc_pingpong -g 1 -n 200 >/dev/null &
            client localhost
            wait
            echo error >&2
            head -c 3000000 /dev/zero | tr '\\0' '\\377'
            sleep 1000 &
            kill -SEGV $$""", REPOSITORY, RUN)
        with open(RUN, "rb") as file:
            self.assertTrue(file.read().startswith(b"#!"))
        self.assertEqual((code, err), (128 + signal.SIGSEGV, "error\n"), out[:4096])
        said = out.rstrip(b"\xff")
        self.assertEqual(len(out) - len(said), 3000000)
        for text in (b"rxe0", b"PORT_ACTIVE", b"::ffff:10.77.0.1", b"fe80::", b"1638400 bytes in"):
            self.assertIn(text, said)

    def test_ordinary_user_under_yama(self):
        """Scope 1: memory of a process that is no child cannot be read, unless it allows it."""
        code, out, err = run("--user", "1000", "--sysctl", "kernel.yama.ptrace_scope=1", "--", "sh", "-c", """
            set -e
            touch /tmp/mine /dev/shm/mine
            id -u
            cat /proc/sys/kernel/yama/ptrace_scope
            sleep 1000 &
            # This shell is the parent of both; neither is an ancestor of the other.
            python3 -Sc 'if True:
                import os, sys
                try:
                    os.open(f"/proc/{sys.argv[1]}/mem", os.O_RDONLY)
                except PermissionError:
                    print("refused")' $!
            exit 7""")
        self.assertEqual((code, out, err), (7, b"1000\n1\nrefused\n", ""))

    def test_two_machines(self):
        """A real connection between two hosts. If the command of one fails, the other is ended a little later."""
        code, out, err = run("--machines", "2", "--modules", "rdma_rxe", "--", "sh", "-c", RETRY + """
            set -e
            grep -q "$VM_PEER.*vm$((3 - VM_INDEX))" /etc/hosts
            echo "$(hostname) $VM_ADDRESS"
            if [ $VM_INDEX = 1 ]; then
                ibv_rc_pingpong -g 1 -n 200
                sleep 1000
            fi
            client $VM_PEER
            printf unfinished
            exit 3""")
        self.assertEqual(code, 3, err)
        self.assertIn("vm1: ended, since the other had failed", err)
        lines = out.splitlines()
        for index in (1, 2):
            said = b"\n".join(line[5:] for line in lines if line.startswith(b"vm%d| " % index))
            self.assertIn(b"vm%d 10.77.0.%d" % (index, index), said)
            self.assertIn(b"1638400 bytes in", said)
        self.assertIn(b"vm2| unfinished", lines)
        self.assertTrue(all(line.startswith((b"vm1| ", b"vm2| ")) for line in lines))

    def test_panic(self):
        # What is on its way out when a kernel panics is lost; the pause lets it leave.
        code, out, err = run("--", "sh", "-c", "printf before; sleep 3; echo c >/proc/sysrq-trigger")
        self.assertEqual(code, 125)
        self.assertEqual(out, b"before")
        self.assertIn("panicked while the command ran", err)
        self.assertIn("sysrq triggered crash", err)

    def test_deadline(self):
        """The time-out counts from the boot. It is not known how long a boot takes, so several time-outs are tried."""
        for limit in ("10", "40", "160"):
            code, out, err = run("--timeout", limit, "--", "sh", "-c", "printf begun; sleep 1000")
            self.assertEqual(code, 124, err)
            if out:
                break
            # Booted or not, it has printed nothing yet.
            self.assertRegex(err, f"had not (booted|ended) when the {limit} s were up")
        self.assertEqual(out, b"begun")
        self.assertIn(f"had not ended when the {limit} s were up", err)

    def test_interrupted(self):
        process = start("--", "sh", "-c", "echo begun; sleep 1000", start_new_session=True)
        wait_for(process.stdout, b"begun")
        self.assertEqual(len(started_and_alive()), 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, _ = process.communicate(timeout=100)
        self.assertEqual((process.returncode, out), (128 + signal.SIGINT, b""))
        # Killed while it boots, it cannot clean up; nothing needs it to.
        process = start("--", "true")
        limit = time.monotonic() + 60
        while len(started_and_alive()) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=100)


if __name__ == "__main__":
    first = subprocess.run([sys.executable, RUN, "--timeout", "100", "true"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(first.stderr)
    if first.returncode == 77:
        sys.exit(1 if os.environ.get("CI") else 77)
    unittest.main(verbosity=2)
