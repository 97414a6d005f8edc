"""The bundled draft in the shape transformers' assisted generation wants: the verifier's whole vocabulary."""

from __future__ import annotations

import copy

import torch
from transformers import LlamaForCausalLM

from engine.models.copy_head import mixed


class PeerDraft(LlamaForCausalLM):
    """Shares the weights of a loaded draft with a stored map and a copy head.

    Ids go in through the map; the last position's scores, which are all that assisted generation reads, come out with
    the copy head's share and scattered over the verifier's ids, −inf where the draft has none.
    """

    def __init__(self, draft, width: int):
        config = copy.deepcopy(draft.network.config)
        with torch.device("meta"):
            super().__init__(config)
        self.model, self.lm_head = draft.network.model, draft.network.lm_head
        self.support, self.to_draft, self.copies, self.width = draft.support, draft.to_draft, draft.copies, width
        self.margin = len(draft.copies.share) - 1
        self.read = torch.full((self.margin + config.max_position_embeddings,), -1)
        self.config.vocab_size = width
        self.generation_config = copy.deepcopy(draft.network.generation_config)
        self.eval()

    def forward(self, input_ids=None, **kwargs):
        ids = self.to_draft[input_ids]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        start = self.margin + (cache.get_seq_length() if cache is not None else 0)
        self.read[start : start + ids.shape[1]] = ids[0]
        out = super().forward(input_ids=ids, **kwargs)
        row = mixed(self.copies, out.logits[0, -1:, : len(self.support)].float(), self.read[: start + ids.shape[1]])
        out.logits = row.new_full((1, 1, self.width), float("-inf"))
        out.logits[0, :, self.support] = row
        return out
