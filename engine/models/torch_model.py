"""The torch adapter: any causal language model that transformers loads, behind `engine.models.base`."""

from __future__ import annotations

import gc
import inspect
import time
from dataclasses import replace
from typing import Any, Callable, Iterable, Sequence

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from engine.errors import RequestError
from engine.models import generation, leftover, llama, torch_attention, weights
from engine.models.causal import WAY_OUT
from engine.models.copy_head import CopyHead, CopySession
from engine.models.cost import flops_per_token
from engine.models.device import synchronise
from engine.models.source import Source
from engine.models.torch_sums import GivenUp, Reading, Unreadable
from engine.numerics import torch as numerics
from engine.tokens import Vocabulary
from engine.trace import ModelFacts, Sums

REWINDABLE = (DynamicLayer, DynamicSlidingWindowLayer)  # the latter is replaced by the former, which keeps all keys


class TransformersSession:
    """One text read through the transformers module. Every layer keeps all its keys, also where attention slides:
    a window that has thrown keys away could not be rolled back (the mask still limits what a query sees)."""

    def __init__(self, network: nn.Module, rewindable: bool, rows: int | None):
        self.network, self.rows, self.length = network, rows, 0
        self.keyword = cache_keyword(network)
        self.cache = transformers.DynamicCache() if rewindable else transformers.DynamicCache(config=network.config)

    def feed(self, ids: Tensor, last: int) -> Tensor | None:
        # logits_to_keep=0 would score every position, so a prefill scores one and drops it.
        logits = self.network(ids[None], use_cache=True, logits_to_keep=max(last, 1), **{self.keyword: self.cache}).logits[0]
        self.length += len(ids)
        # A few architectures know no logits_to_keep and score every position whatever they are told.
        return logits[len(logits) - last :, : self.rows].float() if last else None

    def rewind(self, count: int) -> None:
        self.cache.crop(-count)
        self.length -= count

    def close(self) -> None:
        self.cache = None


class TorchSession:
    """Checks and id translation around either inner session; what decoding sees."""

    def __init__(self, model: "TorchModel", inner: Any):
        self.model, self._inner = model, inner

    @property
    def length(self) -> int:
        return self._inner.length

    @torch.inference_mode()
    def feed(self, ids: Sequence[int] | Tensor, last: int) -> Tensor | None:
        return self._inner.feed(self.model.own_ids(ids, self.length), last)

    def rewind(self, count: int) -> None:
        if not 0 <= count <= self.length:
            raise ValueError(f"cannot rewind {count} of {self.length}")
        if count and not self.model.can_rewind:
            raise RequestError(f"{self.model.facts.title} has recurrent layers, which cannot take a token back.")
        if count:
            self._inner.rewind(count)

    def close(self) -> None:
        self._inner.close()


class TorchModel:
    """Loaded weights. See `engine.models.base.Model` for what each member means."""

    ops = numerics

    def __init__(self, network: nn.Module, facts: ModelFacts, vocabulary: Vocabulary, ends: tuple[int, ...],
                 defaults: dict[str, float], device: torch.device, support: Tensor | None = None,
                 copies: CopyHead | None = None):
        self.network, self.facts, self.vocabulary, self.ends = network, facts, vocabulary, ends
        self.defaults, self.device, self.support, self.to_draft = defaults, device, support, None
        if support is not None:
            # Every token outside the draft's own vocabulary is read as its one "other" id, the row after the last.
            # The last entry is such a token too: it stands for ids past the vocabulary, which a padded verifier may emit.
            self.to_draft = torch.full((max(vocabulary.size, int(support.max()) + 1) + 1,), len(support), device=device)
            self.to_draft[support] = torch.arange(len(support), device=device)
        self.copies = copies
        self._embedded = network.get_input_embeddings().weight.shape[0]
        scored = network.get_output_embeddings().weight.shape[0]
        rows = min(vocabulary.usable or scored, scored) if support is None else len(support)  # rows of padding are never scored
        if support is None:
            vocabulary.limit(self._embedded)
        self.can_rewind = can_rewind(network)
        self.asynchronous = device.type != "cpu"
        self._rows = rows
        self._attention_known = False  # whether the network's attention was found to be what we add up
        self._lean = llama.fuse(network, rows)
        if self._lean is None:
            cache_keyword(network)

    @property
    def anchor(self) -> Tensor:
        """Any array on the device, for those that must make another beside it."""
        return self.network.get_input_embeddings().weight[0]

    @property
    def width(self) -> int:
        """Columns of the logits."""
        return self._rows

    def session(self, capacity: int | None = None) -> TorchSession:
        if self._lean is not None:
            inner: Any = llama.LlamaSession(self._lean, capacity or 256)
        else:
            inner = TransformersSession(self.network, self.can_rewind, self._rows)
        return TorchSession(self, CopySession(inner, self.copies, capacity or 256) if self.copies else inner)

    def own_ids(self, ids: Sequence[int] | Tensor, before: int = 0) -> Tensor:
        """Ids as the network reads them, on its device. RequestError if the text, `before` tokens and these, passes the context, or if
        the embedding has no row for one of them."""
        if not isinstance(ids, Tensor):  # what comes from the device was drawn from rows there are
            if self.to_draft is None and len(ids) and max(ids) >= self._embedded:
                raise RequestError(f"{self.facts.title} has no row for token {max(ids)}; its embedding has {self._embedded:,}.")
            ids = torch.tensor(ids, dtype=torch.long, device=self.device)
        context = self.facts.context
        if context and before + len(ids) > context:
            raise RequestError(f"{self.facts.title} reads at most {context} tokens; {before + len(ids)} were asked for.")
        return ids if self.to_draft is None else self.to_draft[ids.clamp(max=len(self.to_draft) - 1)]

    @torch.inference_mode()
    def attention(self, ids: Sequence[int], progress: Callable[[float], bool] = lambda share: False) -> Sums | None:
        """Per-key attention of one prompt; see `engine.models.base.Model`."""
        if not len(ids):
            raise RequestError("An empty prompt has no attention to measure.")
        text = self.own_ids(ids)
        reading = Reading(self.network.config.get_text_config().num_hidden_layers, len(text), progress)
        try:
            if self._lean is not None:
                llama.LlamaSession(self._lean, len(text)).feed(text, 0, reading.attend)
            else:
                if not self._attention_known:
                    torch_attention.verify(self.network)
                    self._attention_known = True
                torch_attention.read(self.network, text, reading)
        except GivenUp:
            return None
        except Unreadable as e:
            raise RequestError(f"The attention of {self.facts.title} cannot be measured: {e}.") from None
        return reading.sums()

    def synchronise(self) -> None:
        """Wait until the device has done all it was given; called before a clock is read."""
        synchronise(self.device.type)

    def close(self) -> None:
        self.network = self._lean = self.support = self.to_draft = self.copies = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()


def cache_keyword(network: nn.Module) -> str:
    """What the network's forward calls its cache. transformers before 5.23 says past_key_values, and a forward swallows
    any other name without a word. RequestError if it takes no cache at all: each token would be read without its text.
    """
    known = inspect.signature(network.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in known:
            return name
    raise RequestError(f"{type(network).__name__} keeps no key-value cache in transformers {transformers.__version__}, so it cannot "
                       "be read token by token; choose another model.")


def can_rewind(network: nn.Module) -> bool:
    """False where a layer keeps a running state instead of keys: it cannot forget a single token. Also false for kinds
    of cache that we do not know."""
    if getattr(network, "_is_stateful", False):
        return False
    return all(type(layer) in REWINDABLE for layer in transformers.DynamicCache(config=network.config).layers)


def load(source: Source, device: str, dtype: str, asked_device: str, asked_dtype: str, notes: tuple[str, ...] = ()) -> TorchModel:
    """Load a resolved source on a resolved device in a resolved precision.

    Raises RequestError in one sentence where transformers cannot read the model.
    """
    started = time.monotonic()
    vocabulary = Vocabulary.load(source.tokenizer_folder, source.title)  # first: it may be refused, and takes less than the weights
    try:
        # Sizes that do not match would be an error that names nothing; as information they can be told.
        network, read = transformers.AutoModelForCausalLM.from_pretrained(
            str(source.folder), dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False, use_safetensors=True,
            output_loading_info=True, ignore_mismatched_sizes=True, generation_config=transformers.GenerationConfig())
    except Exception as e:
        why = " ".join(str(e).split())[:200] or type(e).__name__
        raise RequestError(f"{source.name} could not be loaded by transformers {transformers.__version__}: {why}") from e
    require_whole(source.name, read["missing_keys"], read["mismatched_keys"])
    network.eval().requires_grad_(False)
    network.to(device)
    support = copies = None
    if source.draft_vocabulary is not None:
        stored = load_file(source.draft_vocabulary, device=device)
        support = stored["to_verifier"].long()
        if "copy_share" in stored:
            copies = CopyHead(stored["copy_share"], float(stored["copy_temperature"]), len(support))
    habits = generation.read(source.folder, {**weights.read_config(source.folder), **network.config.to_dict()})
    scored = network.get_output_embeddings().weight.shape[0] if support is None else None
    ends, never = generation.ends(habits, vocabulary.tokenizer.eos_token_id, scored)
    unused = leftover.note(read["unexpected_keys"], network.config.get_text_config().tie_word_embeddings is True)
    notes = (*notes, *habits.notes, *never, *([unused] if unused else []))
    model = TorchModel(network, _facts(network, source, vocabulary, support, device, dtype, asked_device, asked_dtype, notes),
                       vocabulary, ends, dict(habits.defaults), torch.device(device), support, copies)
    if model._lean is None:
        require_causal(network, source.title)
    model.synchronise()
    model.facts = replace(model.facts, load_seconds=round(time.monotonic() - started, 3))
    return model


def require_whole(name: str, missing: Iterable[str], mismatched: Iterable[tuple]) -> None:
    """RequestError if the files lack weights that config.json asks for, or hold them in other sizes: transformers would
    fill these with random numbers and only warn."""
    lacking = sorted(missing)
    wrong = sorted((key, tuple(stored), tuple(asked)) for key, stored, asked in mismatched)
    if lacking:
        first = f"{lacking[0]} is missing"
    elif wrong:
        key, stored, asked = wrong[0]
        first = f"{key} has the shape {stored} instead of {asked}"
    else:
        return
    count = len(lacking) + len(wrong) - 1
    more = f", and {count:,} more differ" if count else ""
    raise RequestError(f"The weights of {name} are not those that its config.json describes: {first}{more}; fetch the model again.")


def require_causal(network: nn.Module, title: str) -> None:
    """RequestError if a token's scores change with the token behind it, whatever the config calls the network."""
    device, rows = network.get_input_embeddings().weight.device, network.get_input_embeddings().weight.shape[0]
    ids = torch.tensor([[0, 1], [0, 2]], device=device) % rows
    with torch.inference_mode():
        first = network(ids, use_cache=False).logits[:, 0].float()
    bound = (1e-3 if network.dtype == torch.float32 else 0.1) * first.std()
    if rows > 2 and bool((first[0] - first[1]).abs().amax() > bound):  # False where the scores are no numbers
        raise RequestError(f"{title} is no causal model: a token's scores change with the token behind it ({type(network).__name__}); "
                           f"{WAY_OUT}.")


def readable(config: Any) -> int | None:
    """How many positions a network can be read token by token. Longrope turns every key another way once a text passes
    its original length: keys in the cache would be wrong, and a block across that length is scored unlike single tokens."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return limit
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None) or limit
    return original if limit is None else min(limit, original)


def _facts(network, source, vocabulary, support, device, dtype, asked_device, asked_dtype, notes) -> ModelFacts:
    config = network.config.get_text_config()
    context, asked = readable(config), getattr(config, "max_position_embeddings", None)
    if context != asked:
        notes = (*notes, f"{source.title} scales all its positions anew past {context:,}, which no cache survives, so it is read up to there.")
    head = network.get_output_embeddings()
    embedding = network.get_input_embeddings()
    tied = head is None or head.weight.data_ptr() == embedding.weight.data_ptr()
    parameters = sum(p.numel() for p in network.parameters())
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    return ModelFacts(
        name=source.name, title=source.title, path=str(source.folder), revision=source.revision,
        architecture=type(network).__name__, layers=config.num_hidden_layers, width=config.hidden_size,
        parameters=parameters, flops_per_token=flops_per_token(shapes, network.config.to_dict()),
        vocabulary=min(vocabulary.usable, embedding.weight.shape[0]) if support is None else len(support),
        context=context, tied_head=tied, weights=source.weights,
        backend="torch", backend_version=torch.__version__, device=device, asked_device=asked_device, dtype=dtype,
        asked_dtype=asked_dtype, bytes=sum(p.numel() * p.element_size() for p in network.parameters()), notes=tuple(notes))
