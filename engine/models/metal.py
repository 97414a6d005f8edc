"""Everything about MLX that needs an Apple GPU. Not one line here that says `mx` has ever run in our tests.

The rest of the MLX adapter runs on Linux too, and is tested there. What Metal adds is a device, its memory and its cache.
"""

from __future__ import annotations

import functools
import platform
import sys

WORKING_SHARE = 0.75  # of the machine's memory that macOS lets the GPU hold by default, where it does not say


def possible() -> bool:
    """Whether this is the kind of machine that has Metal; imports nothing."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


@functools.cache
def available() -> bool:
    """Whether MLX is here and sees an Apple GPU."""
    if not possible():
        return False
    try:
        import mlx.core as mx

        return bool(mx.metal.is_available())
    except Exception:  # no MLX, or one that does not run on this macOS: then there is no Metal for us
        return False


def choose(device: str) -> None:
    """Let MLX work on "metal" or "cpu" from now on, in this thread and those that ask for no other."""
    import mlx.core as mx

    mx.set_default_device(mx.gpu if device == "metal" else mx.cpu)


def limit(memory: int) -> int:
    """Bytes that the GPU may hold of a machine's `memory`, which it shares with everything else."""
    if available():
        import mlx.core as mx

        size = int(mx.device_info().get("max_recommended_working_set_size", 0))
        if size:
            return min(size, memory)
    return int(memory * WORKING_SHARE)
