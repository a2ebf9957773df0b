#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test of several nodes over an ordinary network (the ofi transport): the nodes are spread over network namespaces, which count as
hosts and are joined by a bridge. All of these are in namespaces of this process, so the kernel removes them when this process ends.

Usage: over_network.py PROVIDER[,FAMILY[,HOSTS]] TEST...

PROVIDER is a provider of libfabric ("tcp;ofi_rxm", "udp;ofi_rxd", "shm", whose nodes are on one host all the same), or "tcp": the one that weft chooses for TCP; FAMILY is the only IP version
of the hosts, 4 or 6, or 46 for both; HOSTS is their number (4). Each host has two interfaces, net0 and net1, in two networks. The test gets TEST_NAMESPACES,
one path for each host; TEST_COORD, the first host's address on net0; TEST_COORD_6, its IPv6 address there if it has one; and TEST_BRIDGE, the namespace of the bridges br0 and br1, whose ports
are net0-HOST and net1-HOST.
"""
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from processes import patience  # noqa: E402

SKIP = 77


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def make_hosts(hosts, family):
    """The namespaces' paths, and the addresses of the first, by the names of the test's variables."""
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "weft-netns", "/run/netns"], check=True)
    def address(net, host, family):
        return f"10.77.{net}.{host + 1}" if family == "4" else f"fd77:{net}::{host + 1}"
    for net in (0, 1):
        ip("link", "add", f"br{net}", "type", "bridge")
        ip("link", "set", f"br{net}", "up")
    for host in range(hosts):
        ip("netns", "add", f"h{host}")
        ip("-n", f"h{host}", "link", "set", "lo", "up")
        for net in (0, 1):
            ip("link", "add", f"net{net}-{host}", "type", "veth", "peer", "name", f"net{net}", "netns", f"h{host}")
            ip("link", "set", f"net{net}-{host}", "master", f"br{net}", "up")
            if "6" in family:
                ip("-n", f"h{host}", "addr", "add", f"{address(net, host, '6')}/64", "dev", f"net{net}", "nodad")
            if "4" in family:
                ip("-n", f"h{host}", "addr", "add", f"{address(net, host, '4')}/24", "dev", f"net{net}")
            ip("-n", f"h{host}", "link", "set", f"net{net}", "up")
    first = {version: address(0, 0, version) if version == "4" else f"[{address(0, 0, version)}]" for version in family}
    addresses = {"TEST_COORD": first[family[0]]}
    if "6" in family:
        addresses["TEST_COORD_6"] = first["6"]
    return [f"/run/netns/h{i}" for i in range(hosts)], addresses


def forget_name_servers():
    """No name server can be reached from the hosts' networks, so a name that is not in /etc/hosts is not known, at once."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("hosts: files\n")
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/nsswitch.conf"], check=True)


def main():
    what, *test = sys.argv[1:]
    if "TEST_IN_NETWORK" not in os.environ:
        own = ["unshare", "--mount", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
        if subprocess.run([*own, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            print("over_network: this user may not make namespaces")
            return SKIP
        os.environ["TEST_IN_NETWORK"] = "1"
        os.execvp(own[0], [*own, sys.executable, *sys.argv])
    provider, family, hosts = (what.split(",") + ["", ""])[:3]
    if provider == "shm":  # a node that is killed leaves the provider's file there
        subprocess.run(["mount", "-t", "tmpfs", "weft-shm", "/dev/shm"], check=True)
    forget_name_servers()
    paths, addresses = make_hosts(int(hosts or 4), family or "4")
    env = dict(os.environ, WEFT_TRANSPORT="ofi", WEFT_OFI_PROVIDER="" if provider == "tcp" else provider, TEST_NAMESPACES=":".join(paths), **addresses,
               TEST_BRIDGE=f"/proc/{os.getpid()}/ns/net")
    # Each step takes a few system calls and a message through the kernel: do fewer steps, as over softverbs.
    env.setdefault("TEST_DIVIDE", "30")
    # On a busy machine a node may be silent for long, and must not be declared dead for that.
    env.setdefault("WEFT_LIVENESS", f"{patience(30):.0f}s")
    return subprocess.run(test, env=env, check=False).returncode


sys.exit(main())
