# SPDX-License-Identifier: MIT
"""A script that tests use instead of ssh: it runs the command on this machine through a shell, with only the RDMA device's variables from this
environment, and on a "host" of its own, with that name, if namespaces can be made."""
import subprocess

SSH = """#!/bin/sh
# Arguments: options, --, host, command. The command goes to a shell, as sshd does it.
echo "$@" >>"$0.log"
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
case $host in *unreachable*) echo "ssh: no route" >&2; exit 255 ;; *silent*) exec sleep 1000 ;; esac
# Each host has a runtime folder of its own, where the test has one.
[ -z "$XDG_RUNTIME_DIR" ] || {{ run="$0.run/$host"; mkdir -p -m 700 "$run"; }}
exec {apart} env -i PATH="$PATH" HOME=/ LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SOFTVERBS_DIR="$SOFTVERBS_DIR" SOFTVERBS_FABRIC=test ${{CUDA_VISIBLE_DEVICES+CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"}} \\
    ${{run+XDG_RUNTIME_DIR="$run"}} SOFTVERBS_HOST="${{host##*-}}" sh -c "{name} $*"
"""


def namespaces():
    for way in (["unshare", "--ipc", "--uts"], ["unshare", "-r", "--ipc", "--uts"]):
        if subprocess.run([*way, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return " ".join(way)
    return ""


APART = namespaces()
SSH = SSH.format(apart=APART, name="echo ${host#*@} >/proc/sys/kernel/hostname;" if APART else "")
