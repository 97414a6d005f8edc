"""Folders whose weights MLX has packed into few bits: what is really in them, from the headers alone.

A packed matrix (out, in) of b bits lies in the file as `weight` of 32-bit words, (out, in · b / 32), beside `scales` of one
number a group of inputs. Networks of experts lie there with all experts of a layer in one tensor, `switch_mlp`.
"""

from __future__ import annotations

from typing import Any, Mapping


def settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How MLX packed the weights; None for a folder that is not packed by MLX."""
    found = config.get("quantization")
    return found if isinstance(found, Mapping) and isinstance(found.get("bits"), int) and isinstance(found.get("group_size"), int) else None


def described(config: Mapping[str, Any]) -> str | None:
    """How the weights are stored, "4-bit in groups of 64" say; None if they are not packed."""
    how = settings(config)
    if how is None:
        return None
    mode = how.get("mode", "affine")
    mixed = sorted({part["bits"] for part in how.values() if isinstance(part, Mapping) and isinstance(part.get("bits"), int)} - {how["bits"]})
    words = f"{how['bits']}-bit{''.join(f' and {bits}-bit' for bits in mixed)} in groups of {how['group_size']}"
    return words if mode == "affine" else f"{mode} {words}"


def shapes(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights as they multiply, packed ones unpacked, without their scales and biases."""
    how = settings(config)
    if how is None:
        return {name: t.shape for name, t in tensors.items()}
    found = {}
    for name, t in tensors.items():
        base, _, kind = name.rpartition(".")
        scales = tensors.get(f"{base}.scales")
        if scales is not None and kind in ("scales", "biases"):
            continue
        shape = t.shape
        if scales is not None and kind == "weight" and t.dtype == "U32":
            own = how.get(base)
            group = own["group_size"] if isinstance(own, Mapping) and isinstance(own.get("group_size"), int) else how["group_size"]
            shape = (*shape[:-1], scales.shape[-1] * group)
        found[name.replace(".switch_mlp.", ".experts.")] = shape
    return found
