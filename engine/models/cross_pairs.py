"""Pairs with different tokenizers worth trying, with what their weights take: what fits is seen before anything is fetched.

Sizes are of the published weights. Names are those of the model hub; nothing here was run in our tests but the bundled pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 1e9


@dataclass(frozen=True)
class CrossPair:
    """`backend`: "torch" or "mlx". `bytes`: weights of both models. `memory`: GB of machine memory it is meant for."""

    title: str
    verifier: str
    draft: str
    backend: str
    bytes: float
    memory: int
    note: str = ""


BIELIK_8BIT, BIELIK_4BIT = "speakleash/Bielik-11B-v2.2-Instruct-MLX-8bit", "speakleash/Bielik-11B-v2.2-Instruct-MLX-4bit"
BIELIK, QWEN, LLAMA, BIELIK_SMALL = ("speakleash/Bielik-11B-v2.3-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "meta-llama/Llama-3.2-1B-Instruct",
                                     "speakleash/Bielik-1.5B-v3.0-Instruct")
QWEN_4BIT, LLAMA_4BIT, BIELIK_SMALL_4BIT = ("mlx-community/Qwen2.5-1.5B-Instruct-4bit", "mlx-community/Llama-3.2-1B-Instruct-4bit",
                                            "vqstudio/Bielik-1.5B-v3.0-Instruct-MLX-4bit")
DEMONSTRATION = ("Demonstration models of a few million parameters, trained on ten megabytes of Polish. At any size the tokenizer of the verifier cuts as "
                 "these lanes show, every strategy is lossless and refusals have these causes; how many there are, the speed and the text itself "
                 "do not carry over.")

CROSS: tuple[CrossPair, ...] = (
    CrossPair("Bundled: Polish draft", "bundled:polish-verifier", "bundled:polish-draft", "torch", 0.03 * GB, 8, DEMONSTRATION),
    CrossPair("Bundled: general draft", "bundled:polish-verifier", "bundled:polish-draft-general", "torch", 0.03 * GB, 8, DEMONSTRATION),
    CrossPair("Bielik 11B 4-bit + Qwen2.5 1.5B (MLX)", BIELIK_4BIT, QWEN_4BIT, "mlx", 7.2 * GB, 16),
    CrossPair("Bielik 11B 4-bit + Llama 3.2 1B (MLX)", BIELIK_4BIT, LLAMA_4BIT, "mlx", 7.0 * GB, 16),
    CrossPair("Bielik 11B 4-bit + Bielik 1.5B (MLX)", BIELIK_4BIT, BIELIK_SMALL_4BIT, "mlx", 7.2 * GB, 16),
    CrossPair("Bielik 11B 8-bit + Qwen2.5 1.5B (MLX)", BIELIK_8BIT, QWEN_4BIT, "mlx", 12.8 * GB, 32),
    CrossPair("Bielik 11B 8-bit + Bielik 1.5B (MLX)", BIELIK_8BIT, BIELIK_SMALL_4BIT, "mlx", 12.8 * GB, 32),
    CrossPair("Bielik 11B + Bielik 1.5B", BIELIK, BIELIK_SMALL, "torch", 25.5 * GB, 48),
    CrossPair("Bielik 11B + Qwen2.5 1.5B", BIELIK, QWEN, "torch", 25.4 * GB, 48),
    CrossPair("Bielik 11B + Llama 3.2 1B", BIELIK, LLAMA, "torch", 24.8 * GB, 48, "Llama 3.2 is gated: accept its terms on the hub first."),
)


def words(pair: CrossPair, have: int) -> str:
    """What its weights take of this machine's `have` bytes, in a sentence."""
    fits = "fits" if pair.bytes * 1.25 < have else "does not fit"
    return (f"Weights of both models: {pair.bytes / GB:.2g} GB, which {fits} in this machine's {have / GB:.0f} GB "
            f"with room for caches; meant for {pair.memory} GB and more.")
