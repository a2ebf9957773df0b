# SPDX-License-Identifier: MIT
"""Part of the suite services: a server of ssh for one side, which only this user can reach."""
import getpass
import os
import shutil
import subprocess
import tempfile

from rig import Side, end, free_port, start, wait_listening


class Server(Side):
    """A side that has a server of its own on this host. `command`: ssh to it, as far as the host's name."""
    options = []
    server, made = None, False

    def missing(self):
        self.sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        return None if self.sshd and shutil.which("ssh") and shutil.which("ssh-keygen") else "ssh or sshd is not installed"

    def prepare(self):
        self.server, self.port = None, free_port()
        self.folder = tempfile.mkdtemp(prefix="weft-bench-")
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(self.folder, key)], check=True)
        self.made = os.getuid() == 0 and not os.path.exists("/run/sshd")
        if self.made:
            os.mkdir("/run/sshd", 0o755)  # without it root's sshd does not start
        # Without SHLVL, bash would read ~/.bashrc before each command, which may take any time.
        self.server = start([self.sshd, "-D", "-e", "-f", "/dev/null", "-p", str(self.port), "-h", os.path.join(self.folder, "host"),
                             *(word for o in ("ListenAddress=127.0.0.1", "UsePAM=no", "StrictModes=no", "PidFile=none", "Subsystem=sftp internal-sftp",
                                              "SetEnv=SHLVL=2",
                                              f"AuthorizedKeysFile={self.folder}/user.pub") for word in ("-o", o))])
        wait_listening(self.port, self.server)
        self.command = ["ssh", "-F", "/dev/null", "-p", str(self.port), "-i", os.path.join(self.folder, "user"), "-oBatchMode=yes",
                        "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR", *self.options,
                        f"{getpass.getuser()}@127.0.0.1"]

    def finish(self):
        if self.server:
            end(self.server)
            self.server.communicate()
        if self.made:
            os.rmdir("/run/sshd")
        shutil.rmtree(self.folder, ignore_errors=True)
