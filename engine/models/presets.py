"""Pairs that fit a Mac's memory, for the MLX backend: all of one family, whose sizes share a vocabulary.

A pair's weights, packed to 4 bits (about 0.56 bytes a parameter with their scales), take at most a third of the memory, so that
caches, the working set and the system have room beside them. The models are fetched from the hub when a run first asks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """`memory_gb`: the smallest machine it is meant for. `weights_gb`: both models' weights."""

    memory_gb: int
    verifier: str
    draft: str
    weights_gb: float

    @property
    def title(self) -> str:
        return f"{self.memory_gb} GB: {self.verifier.split('/')[-1]} with {self.draft.split('/')[-1]}"


PRESETS = (
    Preset(8, "mlx-community/Qwen2.5-3B-Instruct-4bit", "mlx-community/Qwen2.5-0.5B-Instruct-4bit", 2.0),
    Preset(16, "mlx-community/Qwen2.5-7B-Instruct-4bit", "mlx-community/Qwen2.5-0.5B-Instruct-4bit", 4.6),
    Preset(32, "mlx-community/Qwen2.5-14B-Instruct-4bit", "mlx-community/Qwen2.5-1.5B-Instruct-4bit", 9.2),
)


def fitting(memory_bytes: int) -> Preset | None:
    """The largest preset for a machine of so much memory; None for one smaller than all of them are meant for."""
    fits = [p for p in PRESETS if memory_bytes >= 0.95 * p.memory_gb * 2**30]  # a machine tells a little less than it is sold with
    return fits[-1] if fits else None
