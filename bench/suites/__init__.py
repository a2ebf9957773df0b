# SPDX-License-Identifier: MIT
"""The benchmarks, in the order in which `bench/run` without names runs them. A new one is a module and a word here."""
import importlib

NAMES = ("pool", "fabric", "wait", "barrier", "queue", "map", "services", "softverbs", "rc", "tb", "ofi", "gpu", "nvlink")
ASKED_FOR = ("gpu", "nvlink")  # run only if named: they need devices that few machines have


def load(name):
    return importlib.import_module("suites." + name)
