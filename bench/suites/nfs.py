# SPDX-License-Identifier: MIT
"""The kernel's NFS server and a mount of it, on this machine: inside a virtual machine only (`bench/run file --nfs`), as it changes
/var/lib/nfs and what the machine exports."""
import os
import shutil
import subprocess
import tempfile

from rig import Missing, Side

INSIDE = "BENCH_NFS"  # set in the machine
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
STATE = "/var/lib/nfs"


def inside():
    return bool(os.environ.get(INSIDE))


class Server(Side):
    """Serves `served`, a folder in memory, by NFS 4.2 over TCP on loopback. mount() mounts it, with an empty cache, at `mounted`."""
    folder = None

    def missing(self):
        lack = [n for n in ("rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs4") if not shutil.which(n, path=PATH)]
        return ", ".join(lack) + " not installed (nfs-kernel-server)" if lack else None

    def does(self, *argv):
        p = subprocess.run(argv, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=False)
        if p.returncode:
            raise Missing(f"{' '.join(argv)}: {p.stderr.strip()[-200:]}")

    def serve(self):
        if self.folder:
            return
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        self.served, self.mounted = os.path.join(self.folder, "served"), os.path.join(self.folder, "mounted")
        os.makedirs(self.served)
        os.makedirs(self.mounted)
        self.does("mount", "-t", "tmpfs", "served", self.served)  # its own file system: an overlay cannot be served
        self.does("mount", "-t", "tmpfs", "state", STATE)
        os.makedirs(STATE + "/v4recovery")
        for name in ("etab", "rmtab"):
            with open(f"{STATE}/{name}", "w", encoding="ascii"):
                pass
        if not os.path.exists("/proc/fs/nfsd/threads"):
            self.does("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
        self.does("exportfs", "-o", "rw,fsid=0,no_subtree_check,no_root_squash,insecure", "127.0.0.1:" + self.served)
        self.does("rpc.mountd", "-N", "3")
        self.does("rpc.nfsd", "-N", "3", "-V", "4.2", "4")

    def mount(self):
        self.serve()
        self.does("mount", "-t", "nfs4", "-o", "vers=4.2,proto=tcp,nconnect=4", "127.0.0.1:/", self.mounted)

    def unmount(self):
        self.does("umount", self.mounted)
