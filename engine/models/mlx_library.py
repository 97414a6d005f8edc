"""mlx-lm's names, imported without its side effect: on import it sets the process's limit of open files to 2,048, at most
4,096 for good, which may be far below what the process had. Raising a lower limit is all that many weight files need."""

from __future__ import annotations

import resource
from importlib.metadata import version

FILES = 2048


def _import():
    keep = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        from mlx_lm import utils
        from mlx_lm.models import cache
    finally:
        resource.setrlimit = keep
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES and (hard < 0 or hard >= FILES):  # below 0: no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    return utils, cache


utils, cache = _import()


def mlx_lm_version() -> str:
    return version("mlx-lm")
