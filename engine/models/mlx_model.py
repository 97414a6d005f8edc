"""The MLX adapter: any causal language model that mlx-lm loads, behind `engine.models.base`.

MLX arrays are lazy and its streams belong to a thread, so a model is loaded and run on one. What comes out of `feed` is on
its way, not done: a clock is read after `synchronise`. On a CPU this is the plain BLAS that MLX brings for Linux.
"""

from __future__ import annotations

import gc
import importlib
import time
from dataclasses import fields, replace
from typing import Any, Callable, Mapping, Sequence

import mlx.core as mx
import transformers
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path

from engine.errors import RequestError
from engine.models import cost, generation, metal, mlx_attention, mlx_config, packed, weights
from engine.models.mlx_copy_head import CopyHead, CopySession
from engine.models.mlx_library import mlx_lm_version
from engine.models.mlx_library import utils as mlx_lm
from engine.models.mlx_session import NetworkSession, WindowCache, ahead_pays, caches, rewindable, width_of
from engine.models.source import Source
from engine.numerics import mlx as numerics
from engine.tokens import Vocabulary
from engine.trace import ModelFacts, Sums



class MlxSession:
    """Checks and id translation around the inner session; what decoding sees."""

    def __init__(self, model: "MlxModel", inner: Any):
        self.model, self._inner = model, inner
        self._may_read_ahead = ahead_pays() and model.can_rewind and isinstance(inner, NetworkSession) and model.to_draft is None

    @property
    def length(self) -> int:
        return self._inner.length

    def feed(self, ids: Sequence[int] | mx.array, last: int) -> mx.array | None:
        own, known = self.model.own_ids(ids, self.length), len(ids) == 1 and not isinstance(ids, mx.array)
        token = (int(ids[0]),) if known and self._may_read_ahead else ()
        self.model.pending = self._inner.feed(own, last, *token)
        return self.model.pending

    def rewind(self, count: int) -> None:
        if not 0 <= count <= self.length:
            raise ValueError(f"cannot rewind {count} of {self.length}")
        if count and not self.model.can_rewind:
            raise RequestError(f"{self.model.facts.title} has recurrent layers, which cannot take a token back.")
        if count:
            self._inner.rewind(count)

    def close(self) -> None:
        self._inner.close()


class MlxModel:
    """Loaded weights. See `engine.models.base.Model` for what each member means."""

    ops = numerics
    asynchronous = True

    def __init__(self, network: nn.Module, facts: ModelFacts, vocabulary: Vocabulary, ends: tuple[int, ...],
                 defaults: dict[str, float], support: mx.array | None = None, copies: CopyHead | None = None):
        self.network, self._facts, self.vocabulary, self.ends = network, facts, vocabulary, ends
        self.defaults, self.support, self.to_draft, self.copies = defaults, support, None, copies
        if support is not None:
            # Every token outside the draft's own vocabulary is read as its one "other" id, the row after the last.
            # The last entry is such a token too: it stands for ids past the vocabulary, which a padded verifier may emit.
            self.to_draft = mx.full((max(vocabulary.size, int(support.max()) + 1) + 1,), len(support), dtype=mx.int32)
            self.to_draft[support] = mx.arange(len(support), dtype=mx.int32)
            mx.eval(self.to_draft)
        self.can_rewind = rewindable(network)
        self.anchor = mx.zeros(1)
        self.pending: mx.array | None = None  # the last scores handed out
        self._aside = mx.new_thread_local_stream(mx.default_device())
        scored = width_of(network)
        self._embedded = scored  # mlx-lm says the embedding's rows nowhere; a head of another height is refused at the load
        self._rows = self.width = min(vocabulary.usable or scored, scored) if support is None else len(support)  # without padding
        if support is None:
            vocabulary.limit(scored)

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model, and the most memory that MLX has held for it and all that ran beside it."""
        peak = f"MLX held at most {mx.get_peak_memory() / 2**30:.2f} GB at once since {self._facts.title} was loaded."
        return replace(self._facts, notes=(*self._facts.notes, peak))

    def session(self, capacity: int | None = None) -> MlxSession:
        inner: Any = NetworkSession(self.network, self._rows, self._aside)
        return MlxSession(self, CopySession(inner, self.copies, capacity or 256) if self.copies else inner)

    def caches(self) -> list[Any]:
        return caches(self.network)

    def own_ids(self, ids: Sequence[int] | mx.array, before: int = 0) -> mx.array:
        """Ids as the network reads them, on its device. RequestError if the text, `before` tokens and these, passes the context, or if
        the embedding has no row for one of them (MLX would read another)."""
        if not isinstance(ids, mx.array):
            if self.to_draft is None and len(ids) and max(ids) >= self._embedded:
                raise RequestError(f"{self._facts.title} has no row for token {max(ids)}; its embedding has {self._embedded:,}.")
            ids = mx.array(list(ids), dtype=mx.int32)
        context = self._facts.context
        if context and before + len(ids) > context:
            raise RequestError(f"{self._facts.title} reads at most {context} tokens; {before + len(ids)} were asked for.")
        return ids if self.to_draft is None else self.to_draft[mx.minimum(ids, len(self.to_draft) - 1)]

    def attention(self, ids: Sequence[int], progress: Callable[[float], bool] = lambda share: False) -> Sums | None:
        """Per-key attention of one prompt; see `engine.models.base.Model`."""
        return mlx_attention.sums(self, ids, progress)

    def synchronise(self) -> None:
        """Wait until the device has done all it was given; called before a clock is read."""
        if self.pending is not None:  # not what is read ahead of it
            mx.eval(self.pending)
            self.pending = None
        else:
            mx.synchronize()

    def close(self) -> None:
        self.network = self.support = self.to_draft = self.copies = self.pending = None
        gc.collect()
        mx.clear_cache()


def load(source: Source, device: str, dtype: str, asked_device: str, asked_dtype: str, notes: tuple[str, ...] = ()) -> MlxModel:
    """Load a resolved source on a resolved device in a resolved precision.

    Raises RequestError in one sentence where mlx-lm cannot read the model, or would read it otherwise than transformers.
    """
    started = time.monotonic()
    metal.choose(device)
    mx.reset_peak_memory()
    contents = weights.check(source.folder)
    read = reading(source, contents.config)
    vocabulary = Vocabulary.load(source.tokenizer_folder, source.title)  # first: it may be refused, and takes less than the weights
    network = _network(source, contents.config, read)
    cast(network, getattr(mx, dtype))
    if device == "cpu" and dtype == "float32":
        lay_along_outputs(network)
    mx.eval(network.parameters())
    support = copies = None
    if source.draft_vocabulary is not None:
        stored = mx.load(str(source.draft_vocabulary))
        support = stored["to_verifier"].astype(mx.int32)
        if "copy_share" in stored:
            copies = CopyHead(stored["copy_share"].astype(mx.float32), float(stored["copy_temperature"].item()), len(support))
            mx.eval(copies.share)
        mx.eval(support)
    habits = generation.read(source.folder, {**contents.config, **read})
    rows = width_of(network) if support is None else None
    ends, never = generation.ends(habits, vocabulary.tokenizer.eos_token_id, rows)
    notes = (*notes, *habits.notes, *never)
    facts = _facts(network, source, contents, read, vocabulary, support, device, dtype, asked_device, asked_dtype, notes)
    model = MlxModel(network, facts, vocabulary, ends, dict(habits.defaults), support, copies)
    model.synchronise()
    model._facts = replace(facts, load_seconds=round(time.monotonic() - started, 3))
    return model


def reading(source: Source, raw: Mapping[str, Any]) -> dict[str, Any]:
    """config.json as transformers reads it, defaults and all, under every name it knows for a value; the file itself for a
    kind that transformers does not know."""
    try:
        config = transformers.AutoConfig.from_pretrained(str(source.folder), local_files_only=True, trust_remote_code=False)
        read = config.to_dict()
        return {**{name: read[stored] for name, stored in config.attribute_map.items() if stored in read}, **read}
    except Exception:  # mlx-lm knows kinds that transformers does not; then there is no second reading to differ from
        return dict(raw)


def _network(source: Source, raw: Mapping[str, Any], read: Mapping[str, Any]) -> nn.Module:
    try:
        kind, arguments = mlx_lm._get_classes(dict(raw))
        text = cost.text_config(read)
        laid_over = mlx_config.overrides(raw, read, {f.name: f.type for f in fields(arguments)})
        mlx_config.require_activation(source.title, text, hasattr(importlib.import_module(kind.__module__), "swiglu"))
        network, _ = mlx_lm.load_model(source.folder, lazy=True, model_config=laid_over)
        width_of(network)  # a setting that the file has no answer to shows when it is called
    except RequestError:
        raise
    except Exception as e:
        why = " ".join(str(e).split())[:200].rstrip(".") or type(e).__name__
        raise RequestError(f"{source.name} could not be loaded by mlx-lm {mlx_lm_version()}: {why}.") from e
    turns = [m.base for _, m in network.named_modules() if isinstance(m, nn.RoPE)]
    mlx_config.require_same_turn(source.title, mlx_config.bases(text), turns)
    network.eval()
    return network


def cast(network: nn.Module, dtype: mx.Dtype) -> None:
    """All floating weights in one precision, but for the few a network says must stay as they are stored."""
    may = getattr(network, "cast_predicate", lambda name: True)
    network.update(tree_map_with_path(
        lambda name, v: v.astype(dtype) if mx.issubdtype(v.dtype, mx.floating) and may(name) else v, network.parameters()))


def lay_along_outputs(network: nn.Module) -> None:
    """Lay float32 weights out input by input. The plain BLAS of MLX on a CPU then adds whole rows, 1.6 times as fast as
    it takes dot products; the shapes stay what they were."""
    tied = "lm_head" not in network
    for _, module in network.named_modules():
        if type(module) is nn.Linear or (tied and type(module) is nn.Embedding):
            module.weight = mx.contiguous(module.weight.T).T
            mx.eval(module.weight)


def _facts(network, source, contents, read, vocabulary, support, device, dtype, asked_device, asked_dtype, notes) -> ModelFacts:
    text = cost.text_config(read)
    sizes = cost.dimensions(read)
    shapes = packed.shapes(contents.tensors, contents.config)
    context, asked = mlx_config.context(text), text.get("max_position_embeddings")
    if context != asked:
        notes = (*notes, f"{source.title} scales all its positions anew past {context:,}, which no cache survives, so it is read up to there.")
    windows = tuple(c.window if isinstance(c, WindowCache) else None for c in caches(network))
    within = mlx_config.limited(context, mlx_config.sliding(text, len(windows)), windows)
    if within != context:
        notes = (*notes, f"mlx-lm {mlx_lm_version()} reads {source.title} without its sliding window of {within:,}, so it is read up to there.")
    return ModelFacts(
        name=source.name, title=source.title, path=str(source.folder), revision=source.revision,
        architecture=str((read.get("architectures") or [type(network).__name__])[0]), layers=sizes["layers"] or len(windows), width=sizes["width"],
        parameters=cost.parameters(shapes, contents.config), flops_per_token=cost.flops_per_token(shapes, contents.config),
        vocabulary=min(vocabulary.usable, width_of(network)) if support is None else len(support), context=within, tied_head=cost.tied_head(shapes, contents.config),
        weights=source.weights, backend="mlx", backend_version=f"{mx.__version__} (mlx-lm {mlx_lm_version()})", device=device,
        asked_device=asked_device, dtype=dtype, asked_dtype=asked_dtype,
        bytes=sum(p.nbytes for _, p in tree_flatten(network.parameters())), notes=tuple(notes))
