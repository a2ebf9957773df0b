#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Topologies for tests that softverbs has not built in: JSON on standard output.

topology.py circle N K...       a cable from each node to the node K further on, for each K
    topology.py random N C SEED     connected, with about C cables a node
    topology.py twin C S            two nodes, C cables between them, and S ports without a cable at each
    topology.py rails N K           no cables: one switch, and on it K devices of each node, each in a subnet of its own
    topology.py uneven N K          the same, and every second node has one device more
topology.py crossed             two nodes on a switch, and on two cables more that join the second device of each to the
                                third of the other, all with addresses of one subnet
"""
import json
import random
import sys


def cables(kind, n, rest):
    if kind == "circle":
        return {tuple(sorted((i, (i + k) % n))) for i in range(n) for k in rest}
    if kind == "random":
        dice, found = random.Random(rest[1]), set()
        order = list(range(n))
        dice.shuffle(order)
        for i in range(1, n):  # a tree, so that all nodes are connected
            found.add(tuple(sorted((order[i], order[dice.randrange(i)]))))
        while len(found) < min(n * rest[0] // 2, n * (n - 1) // 2):
            found.add(tuple(sorted(dice.sample(range(n), 2))))
        return found
    sys.exit(__doc__)


def rails(n, k, more=0):
    devices = [[{"interface": f"en{2 + rail}", "ipv4": f"10.0.{rail}.{host + 1}"} for rail in range(k + host % 2 * more)]
               for host in range(n)]
    return {"name": f"rails {n}", "hosts": [{"name": str(i), "devices": d} for i, d in enumerate(devices)], "switch": True}


def crossed():
    devices = [[{"interface": f"en{2 + k}", "ipv4": f"10.0.0.{10 * k + host + 1}"} for k in range(3)] for host in range(2)]
    return {"name": "crossed", "hosts": [{"name": str(i), "devices": d} for i, d in enumerate(devices)], "switch": True,
            "cables": [{"from": "0/en3", "to": "1/en4"}, {"from": "0/en4", "to": "1/en3"}]}


def topology(kind, n=2, *rest):
    if kind == "crossed":
        return crossed()
    if kind in ("rails", "uneven"):
        return rails(n, *rest, 1 if kind == "uneven" else 0)
    pairs = [(0, 1)] * n if kind == "twin" else sorted(cables(kind, n, rest))
    spare = rest[0] if kind == "twin" else 0
    n = 2 if kind == "twin" else n
    devices = [[] for _ in range(n)]
    ends = []
    for number, (a, b) in enumerate(pairs):
        pair = []
        for side, host in enumerate((a, b)):
            name = f"en{2 + len(devices[host])}"
            devices[host].append({"interface": name, "ipv4": f"169.254.{number + 1}.{side + 1}"})
            pair.append(f"{host}/{name}")
        ends.append({"from": pair[0], "to": pair[1]})
    for host in range(n):
        for i in range(spare):
            devices[host].append({"interface": f"en{2 + len(devices[host])}", "ipv4": f"169.254.{100 + i}.{host + 1}"})
    return {"name": f"{kind} {n}", "hosts": [{"name": str(i), "devices": d} for i, d in enumerate(devices)], "cables": ends}


if __name__ == "__main__":
    json.dump(topology(sys.argv[1], *map(int, sys.argv[2:])), sys.stdout, indent=2)
