"""The machine a run was measured on, and the memory it has left."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from importlib import metadata

import psutil

from engine import energy
from engine.trace import Machine

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "mlx", "mlx-lm")


def machine() -> Machine:
    """Facts about this machine, for a run. torch is asked for its accelerator only if something else has imported it already.

    The first call looks for energy counters, which takes a moment where `zeus` is installed; no page asks for it before a run.
    """
    return Machine(system=_system(), chip=_chip() + _accelerator(), cores=_cores(), memory_bytes=memory_total(),
                   python=platform.python_version(), packages=_packages(), energy=energy.meter().why)


def memory_total() -> int:
    """Bytes of memory this process may use: the machine's, or a container's share of it."""
    limit = _cgroup("memory.max")
    total = psutil.virtual_memory().total
    return total if limit is None else min(total, limit)


def memory_available() -> int:
    """Bytes that can be taken now without pushing anything out."""
    free = psutil.virtual_memory().available
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + (_cgroup("memory.stat", "inactive_file") or 0)))  # a file cache is given up when asked


def _cgroup(file: str, key: str = "") -> int | None:
    """A figure of this container's memory group; None without one, or without a limit ("max")."""
    try:
        with open(f"/sys/fs/cgroup/{file}", encoding="ascii") as f:
            words = next((line.split()[1:] for line in f if line.split()[0] == key), []) if key else f.read().split()
        return int(words[0]) if words and words[0] != "max" else None
    except (OSError, ValueError, IndexError):
        return None


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    release = re.match(r"\d+(\.\d+)?", platform.release())
    return f"{platform.system()} {release.group() if release else platform.release()}"


@functools.cache
def _chip() -> str:
    """The processor's own name, "Apple M1 Pro" say; the bare architecture where it has none."""
    name = ""
    try:
        if sys.platform == "darwin":
            name = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=2).stdout
        elif sys.platform == "linux":
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
                name = next((line.split(":", 1)[1] for line in f if line.startswith("model name")), "")
        else:
            name = platform.processor()
    except (OSError, subprocess.SubprocessError):
        pass
    name = re.sub(r"\((R|TM|tm|r)\)", "", name)
    return " ".join(name.split()) or platform.machine()


def _accelerator() -> str:
    """" + NVIDIA …" where torch is loaded and sees such a device."""
    torch = sys.modules.get("torch")
    try:
        return f" + {torch.cuda.get_device_name()}" if torch is not None and torch.cuda.is_available() else ""
    except (AttributeError, AssertionError, RuntimeError):  # torch half imported on another thread, or a broken driver
        return ""


def _cores() -> int:
    """Cores this process may use, which a container may have cut down."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _packages() -> dict[str, str]:
    return dict(_installed())
