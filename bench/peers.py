"""The bundled draft in the shape transformers' assisted generation wants: the verifier's whole vocabulary."""

from __future__ import annotations

import copy

import torch
from transformers import LlamaForCausalLM


class PeerDraft(LlamaForCausalLM):
    """Shares the weights of a loaded draft with a stored map. Ids go in through the map, scores come out scattered
    over the verifier's ids, −inf where the draft has none."""

    def __init__(self, draft, width: int):
        config = copy.deepcopy(draft.network.config)
        with torch.device("meta"):
            super().__init__(config)
        self.model, self.lm_head = draft.network.model, draft.network.lm_head
        self.support, self.to_draft, self.width = draft.support, draft.to_draft, width
        self.config.vocab_size = width
        self.generation_config = copy.deepcopy(draft.network.generation_config)
        self.eval()

    def forward(self, input_ids=None, **kwargs):
        out = super().forward(input_ids=self.to_draft[input_ids], **kwargs)
        rows = out.logits[..., : len(self.support)]
        logits = rows.new_full((*rows.shape[:-1], self.width), float("-inf"))
        logits[..., self.support] = rows
        out.logits = logits
        return out
