# SPDX-License-Identifier: MIT
"""One virtual machine: a QEMU process, and the streams that join it with the harness.

A machine has no files on the host: its streams are socket pairs, its initramfs is in a memory file, and QEMU ends with the
harness. So nothing is left, however the harness ends.
"""
import ctypes
import glob
import mmap
import os
import shlex
import signal
import socket
import stat
import subprocess
import time

from kernel import Missing, cpio, find, read

HERE = os.path.dirname(os.path.abspath(__file__))
QEMU = "qemu-system-x86_64"
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)
STREAMS = ("control", "out", "err")  # ports 1 to 3, as init has them
COVERED = ("/tmp", "/run", "/dev/shm")  # where a machine has fresh memory instead of the host's files


def find_qemu():
    if os.uname().machine != "x86_64":
        raise Missing(f"the machines are x86-64 and share this host's programs, which are {os.uname().machine}")
    qemu = find(QEMU)
    if not qemu:
        raise Missing(f"{QEMU} is not here: apt-get install --no-install-recommends qemu-system-x86")
    return qemu


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def memory_file(data):
    fd = os.memfd_create("initramfs", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    return fd


def counter_khz():
    """The frequency of this processor's time stamp counter, which QEMU uses, too; None if it cannot be read."""
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
    read_counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def sample():
        """The least disturbed of many samples: (time, counter)."""
        found = []
        for _ in range(50):
            before, count, after = time.monotonic_ns(), read_counter(), time.monotonic_ns()
            found.append((after - before, before, count))
        return min(found)[1:]
    begin, first = sample()
    time.sleep(0.05)
    end, last = sample()
    return (last - first) * 1000000 // (end - begin)


def hardware(qemu, accelerator, kernel, initramfs, arguments):
    """The options of every machine. The board has good clocks: without them (QEMU's microvm) a kernel on a busy host
    calibrates its timers wrongly, or never ends doing it. The ELF kernel is entered without unpacking."""
    # QEMU emulates one time stamp counter for all processors; the kernel's own test of that is misled by a busy host. So is
    # its measurement of how fast it counts: clocks were seen to run forty times too fast.
    clock = ""
    if accelerator.startswith("tcg"):
        khz = counter_khz()
        clock = "tsc=reliable " + (f"tsc_early_khz={khz} " if khz else "")
    return [qemu, "-M", "q35", "-accel", accelerator, "-cpu", "max", "-nodefaults",
            "-no-user-config", "-display", "none", "-no-reboot", "-kernel", kernel, "-initrd", f"/dev/fd/{initramfs}",
            "-append", clock + "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic lsm=yama mitigations=off audit=0 "
            "cryptomgr.notests " + arguments]


def kvm_works(qemu, kernel):
    """Whether KVM boots a kernel: /dev/kvm alone says little inside another virtual machine."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot = read("/proc/sys/kernel/random/boot_id").decode().strip()
    cache = os.path.dirname(os.path.dirname(kernel.image))
    verdict = os.path.join(cache, f"kvm-{boot}-{int(os.stat(qemu).st_mtime)}")
    if os.path.exists(verdict):
        return read(verdict) == b"yes"
    init = b"#!/bin/busybox sh\n/bin/busybox echo vm-kvm-works\n/bin/busybox reboot -f\n"
    initramfs = memory_file(kernel.boot + cpio([("init", stat.S_IFREG | 0o755, init)]))
    try:
        said = subprocess.run(hardware(qemu, "kvm", kernel.image, initramfs, "") + ["-m", "512", "-serial", "stdio"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=5,
                              pass_fds=[initramfs], preexec_fn=die_with_parent, check=False).stdout
    except subprocess.TimeoutExpired:
        said = b""
    finally:
        os.close(initramfs)
    for old in glob.glob(os.path.join(cache, "kvm-*")):
        os.unlink(old)
    works = b"vm-kvm-works" in said
    with open(f"{verdict}.{os.getpid()}", "wb") as file:
        file.write(b"yes" if works else b"no")
    os.rename(file.name, verdict)
    return works


class Machine:
    """index counts from 1; wire is the socket that joins it with its peer, or None."""

    def __init__(self, index, plan, wire):
        self.index = index
        self.streams = {}  # name: the harness's end
        self.process = None
        theirs = {}
        initramfs = memory_file(plan.kernel.boot + cpio(self.job(plan)))
        try:
            for name in (*STREAMS, "console"):
                self.streams[name], theirs[name] = socket.socketpair()
            fds = {name: end.fileno() for name, end in theirs.items()}
            # One thread for all processors: with several, QEMU 7.2 sometimes goes on executing the old translation of an instruction that
            # the kernel has changed meanwhile (a breakpoint, while it switches a static key), and the machine hangs, on a busy host above all.
            command = hardware(plan.qemu, "kvm" if plan.kvm else "tcg,thread=single", plan.kernel.image, initramfs,
                               plan.kernel_arguments)
            command += ["-m", str(plan.memory), "-smp", str(plan.cpus),
                        "-chardev", f"socket,id=console,fd={fds['console']}", "-serial", "chardev:console",
                        "-device", "virtio-serial-pci"]
            for port, name in enumerate(STREAMS, 1):
                command += ["-chardev", f"socket,id={name},fd={fds[name]}",
                            "-device", f"virtserialport,nr={port},chardev={name},name={name}"]
            for tag, path in (("root", "/"), ("modules", plan.kernel.modules)):
                command += ["-fsdev", f"local,id={tag},path={path.replace(',', ',,')},security_model=none,"
                            "readonly=on,multidevs=remap", "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
            network = f"socket,id=net,fd={wire.fileno()}" if wire else "hubport,id=net,hubid=0"
            command += ["-netdev", network, "-device", f"virtio-net-pci,netdev=net,romfile=,mac=52:54:00:77:00:{index:02x}"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[initramfs, *fds.values(), *([wire.fileno()] if wire else [])],
                start_new_session=True, preexec_fn=die_with_parent)
            self.streams["qemu"] = self.process.stderr
        finally:
            os.close(initramfs)
            for end in theirs.values():
                end.close()

    def job(self, plan):
        """The files that tell init what to do, for the end of the initramfs."""
        addresses = [f"10.77.0.{number}" for number in range(1, plan.machines + 1)]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                       "HOME": plan.home, "USER": plan.user_name, "LOGNAME": plan.user_name, **plan.environment,
                       "VM_INDEX": str(self.index), "VM_MACHINES": str(plan.machines),
                       "VM_ADDRESS": addresses[self.index - 1]}
        if plan.machines == 2:
            environment["VM_PEER"] = addresses[2 - self.index]
        job = {"name": f"vm{self.index}", "address": addresses[self.index - 1], "keep": " ".join(plan.keep),
               "load": " ".join(plan.modules), "sysctls": " ".join(plan.sysctls),
               "hosts": "\n".join(f"{address}\tvm{number}" for number, address in enumerate(addresses, 1))}
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in job.items()]
        command = ["#!/bin/sh\n", f"cd {shlex.quote(plan.folder)} || exit 126\n"]
        command += [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
        words = " ".join(shlex.quote(word) for word in plan.command)
        if plan.identity:
            user, group, groups = plan.identity
            # The shell in between gives the exit codes every shell has for a command that cannot be run.
            words = (f"setpriv --reuid={user} --regid={group} --groups={','.join(map(str, groups))} -- "
                     f"/bin/sh -c 'exec \"$@\"' sh {words}")
        command.append(f"unset PWD OLDPWD SHLVL\nexec {words}\n")
        return [("init", stat.S_IFREG | 0o755, read(os.path.join(HERE, "init"))),
                ("job", stat.S_IFREG | 0o644, "".join(lines).encode()),
                ("command", stat.S_IFREG | 0o644, "".join(command).encode(errors="surrogateescape"))]

    def tell(self, word):
        try:
            self.streams["control"].sendall(word.encode() + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            pass  # QEMU has ended, which the control stream shows

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        for stream in self.streams.values():
            stream.close()
