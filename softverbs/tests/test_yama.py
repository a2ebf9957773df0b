#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_rights.py in a virtual machine, where Yama's scopes can be set; then a command, as an ordinary user under scope 1.

Usage: test_yama.py RUN SOFTVERBS COMMAND [ARGUMENT...]. Exits with 77 if virtual machines are not available, except under CI.
"""
import os
import shlex
import subprocess
import sys

run, softverbs, *command = (os.path.abspath(word) if os.path.exists(word) else word for word in sys.argv[1:])
here = os.path.dirname(os.path.abspath(__file__))
script = f"""
set -e
python3 {shlex.quote(here)}/test_rights.py {shlex.quote(softverbs)}
echo 1 >/proc/sys/kernel/yama/ptrace_scope
export SOFTVERBS_DIR=/dev/shm/ordinary
install -d -m 700 -o 1000 -g 1000 $SOFTVERBS_DIR
setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
"""
status = subprocess.run([sys.executable, run, "--timeout", "280", "--sysctl", "kernel.yama.ptrace_scope=1", "--", "sh", "-c", script,
                         "sh", *command], stdin=subprocess.DEVNULL, check=False).returncode
sys.exit(1 if status == 77 and os.environ.get("CI") else status)
