"""The torch adapter: decoding loses nothing on any kind of network, and recurrent ones are refused in a pair."""

from __future__ import annotations

import pytest
import torch
import transformers

from engine import pair
from engine.decoding.drafters import ModelDrafter
from engine.decoding.loop import DRAFT_STREAM
from engine.errors import RequestError
from engine.models.torch_model import TorchModel, can_rewind
from engine.sampling import Uniforms
from engine.trace import Sampling, Settings
from tests.decoded import decoded
from tests.networks import LEAN, OTHER, SHAPE, WIDTH, fresh, model, network, prompt_of
from tests.scripted import letters


# ------------------------------------------------------------------------------------------------------------ decoding


def listening(verifier: TorchModel, heard: list):
    """Every session of `verifier` now tells what it was fed, and what it answered."""
    make = verifier.session

    def session(capacity=None):
        made, text = make(capacity), []
        feed, rewind = made.feed, made.rewind

        def listened(ids, last):
            text.extend(int(i) for i in ids)
            logits = feed(ids, last)
            if last:
                heard.append((list(text), logits))
            return logits

        def forgot(count):
            del text[len(text) - count :]
            rewind(count)

        made.feed, made.rewind = listened, forgot
        return made

    verifier.session = session


@pytest.fixture(scope="module", params=["grouped queries, tied", "llama3 rope", "qwen2 with bias", *OTHER])
def kind(request):
    """(verifier's network, another's of the same kind) by name"""
    family, config = {**LEAN, **OTHER}[request.param]
    return network(family, 0, **config), network(family, 1, **config)


def test_greedy_ids_are_those_of_transformers_and_of_verifier_only(kind):
    """Invariant 4 and SD-06's kind: the text is longer than any window; speculation equals plain equals `generate`."""
    verifier, draft = model(kind[0]), model(kind[1])
    prompt = prompt_of(5, 6)
    plain = decoded(verifier, None, prompt, Settings(max_tokens=24))
    want = kind[0].generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24, pad_token_id=0)[0, 6:]
    assert plain.ids == tuple(want.tolist())
    for gamma in (1, 3):
        assert decoded(verifier, draft, prompt, Settings(gamma=gamma, max_tokens=24)).ids == plain.ids


def test_a_network_drafting_for_itself_is_always_accepted(kind):
    """Invariant 2, greedy and sampling."""
    verifier = model(kind[0])
    for sampling in (Sampling(), Sampling(1.0, seed=1), Sampling(0.8, top_p=0.9, top_k=20, min_p=0.02, repetition_penalty=1.2)):
        generation = decoded(verifier, verifier, prompt_of(6, 4), Settings(gamma=4, max_tokens=15, sampling=sampling))
        assert all(r.accepted == len(r.proposed) for r in generation.rounds) and len(generation.rounds) == 3


def test_every_round_scores_as_a_fresh_prefill_does(kind):
    """Invariant 3, through rejections, on both sides of the pair."""
    verifier, draft = model(kind[0]), model(kind[1])
    for sampling in (Sampling(), Sampling(1.5, seed=2)):
        heard = [], []
        for made, of in zip((verifier, draft), heard):
            listening(made, of)
        generation = decoded(verifier, draft, prompt_of(7, 5), Settings(gamma=3, max_tokens=14, sampling=sampling))
        del verifier.session, draft.session
        assert any(r.closing == "correction" for r in generation.rounds)
        assert len(heard[0]) == len(generation.rounds) and len(heard[1]) == sum(len(r.proposed) for r in generation.rounds)
        for net, of in zip(kind, heard):
            for text, logits in of:
                assert torch.allclose(logits, fresh(net, text)[len(text) - len(logits) :], atol=1e-4)


def test_twenty_prompts_and_four_lengths_give_the_verifiers_ids():
    """SD-07: 80 runs; and with the draft equal to the verifier 15, 10, 6 and 4 rounds."""
    verifier, draft = model(network("Llama", 0)), model(network("Llama", 1))
    for seed in range(20):
        prompt = prompt_of(seed, 1 + seed % 7)
        plain = decoded(verifier, None, prompt, Settings(max_tokens=30)).ids
        for gamma, rounds in ((1, 15), (2, 10), (4, 6), (7, 4)):
            settings = Settings(gamma=gamma, max_tokens=30)
            assert decoded(verifier, draft, prompt, settings).ids == plain and len(plain) == 30
            if seed < 3:
                same = decoded(verifier, verifier, prompt, settings)
                assert same.ids == plain and len(same.rounds) == rounds and all(r.accepted == len(r.proposed) for r in same.rounds)


@pytest.mark.parametrize("name", ["grouped queries, tied", "sliding window"])
def test_assisted_generation_of_transformers_gives_the_same_ids(name):
    family, config = {**LEAN, **OTHER}[name]
    nets = [network(family, seed, **config) for seed in (0, 1)]
    prompt = prompt_of(8, 6)
    nets[1].generation_config.num_assistant_tokens, nets[1].generation_config.num_assistant_tokens_schedule = 4, "constant"
    nets[1].generation_config.assistant_confidence_threshold = 0.0
    want = nets[0].generate(torch.tensor([prompt]), assistant_model=nets[1], do_sample=False, max_new_tokens=20, pad_token_id=0)[0, 6:]
    assert decoded(model(nets[0]), model(nets[1]), prompt, Settings(gamma=4, max_tokens=20)).ids == tuple(want.tolist())


def test_the_drafts_context_and_padding_are_its_own():
    """SD-17 and SD-09 in torch: a draft of 32 positions and 10 rows for a verifier of 128 and 12."""
    verifier = model(network("Llama", 0, vocab_size=12), context=128, vocabulary=letters(9))
    draft = model(network("Llama", 1, vocab_size=10, max_position_embeddings=32), context=32, vocabulary=letters(9))
    pair.check_models(verifier, draft)
    prompt = tuple(i % 9 for i in prompt_of(9, 20))
    for sampling in (Sampling(), Sampling(1.5, repetition_penalty=1.3)):
        settings = Settings(gamma=4, max_tokens=30, sampling=sampling)
        generation = decoded(verifier, draft, prompt, settings)
        assert len(generation.ids) == 30 and "draft's context is full" in generation.notes[0] and generation.rounds[-1].proposed == ()
        assert not sampling.greedy or generation.ids == decoded(verifier, None, prompt, settings).ids
        assert max(generation.ids) < 9  # a row of padding is never drawn


def test_a_text_past_the_context_is_refused_in_one_sentence():
    session = model(network("Llama"), context=8).session()
    session.feed((1,) * 8, 0)
    with pytest.raises(RequestError, match=r"^Tiny reads at most 8 tokens; 9 were asked for\.$"):
        session.feed((1,), 1)
    with pytest.raises(ValueError):
        session.rewind(9)


# ---------------------------------------------------------------------------------------------------- recurrent layers


RECURRENT = {
    "Mamba": dict(vocab_size=WIDTH, hidden_size=32, state_size=4, num_hidden_layers=2, bos_token_id=None, eos_token_id=None, pad_token_id=0),
    "Lfm2": dict(SHAPE, layer_types=["conv", "full_attention"], block_ff_dim=64, block_multiple_of=8),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_is_refused_in_a_pair_and_runs_alone(name):
    """SD-06."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**RECURRENT[name])
        net = transformers.AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    state, keys = model(net, context=None), model(network("Llama"))
    assert not can_rewind(net) and not state.can_rewind and keys.can_rewind
    for verifier, draft in ((state, keys), (keys, state), (state, state), (state, None)):
        with pytest.raises(RequestError, match="Tiny keeps a state that cannot be rolled back"):
            pair.check_models(verifier, draft)
    prompt = prompt_of(10, 5)
    want = net.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12, pad_token_id=0)[0, 5:]
    assert decoded(state, None, prompt, Settings(max_tokens=12)).ids == tuple(want.tolist())
    session = state.session()
    session.feed(prompt, 1)
    with pytest.raises(RequestError, match="cannot take a token back"):
        session.rewind(1)


def test_a_network_without_a_cache_is_refused():
    """Its forward would swallow the cache and read each token without the text before it."""
    net = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(vocab_size=WIDTH, n_embd=32, n_layer=1, n_head=2))
    with pytest.raises(RequestError, match="^OpenAIGPTLMHeadModel keeps no key-value cache"):
        model(net)


# -------------------------------------------------------------------------------------------------- a draft with a map


SUPPORT = torch.tensor([7, 3, 30, 12, 41, 0, 22, 9])


@pytest.fixture(scope="module")
def mapped():
    """A draft that scores eight tokens; its ninth row stands for all others."""
    return model(network("Llama", 1, vocab_size=len(SUPPORT) + 1), support=SUPPORT)


def test_the_map_draft_reads_other_tokens_as_its_one_other_id(mapped):
    assert mapped.width == 8
    session, own = mapped.session(), [5, 1, 8, 0, 8]
    logits = session.feed((0, 3, 1, 7, 49), 5)
    assert logits.shape == (5, 8)
    assert torch.allclose(logits, fresh(mapped.network, own)[:, :8], atol=1e-4)
    beyond = mapped.session().feed((50, 9_999), 2)  # past the vocabulary: also "other"
    assert torch.allclose(beyond, fresh(mapped.network, [8, 8])[:, :8], atol=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=3), Sampling(0.9, top_p=0.7, repetition_penalty=1.4)])
def test_a_map_draft_proposes_only_from_its_map(mapped, sampling):
    drafter = ModelDrafter(mapped, WIDTH, sampling, Uniforms(0, DRAFT_STREAM))
    drafter.begin((1, 2, 3))
    draft = drafter.propose([1, 2, 3, 7], 5)
    p = draft.proposal
    over_all = torch.zeros(5, WIDTH).scatter_(1, p.support if p.support is not None else torch.arange(WIDTH).expand(5, -1), p.probabilities)
    outside = torch.ones(WIDTH, dtype=torch.bool)
    outside[SUPPORT] = False
    assert over_all[:, outside].abs().max() == 0 and torch.allclose(over_all.sum(-1), torch.ones(5), atol=1e-5)
    assert set(p.ids.tolist()) <= set(SUPPORT.tolist())
    assert torch.allclose(over_all.gather(1, p.ids[:, None])[:, 0], p.q)
    assert draft.logits.shape == (5, 8) and torch.equal(SUPPORT[draft.columns], p.ids)
    for i in range(5):  # q is the distribution of the very text the token follows
        text = [1, 2, 3, 7, *p.ids[:i].tolist()]
        z = fresh(mapped.network, mapped.to_draft[torch.tensor(text)].tolist())[-1, :8]
        if sampling == Sampling(1.0):
            assert torch.allclose(over_all[i, SUPPORT], z.softmax(-1), atol=1e-4)


def test_a_map_draft_changes_no_greedy_id_and_its_proposals_follow_the_verifier(mapped):
    verifier = model(network("Llama", 0))
    pair.check_models(verifier, mapped)
    for gamma in (1, 4):
        prompt = prompt_of(11, 6)
        settings = Settings(gamma=gamma, max_tokens=24)
        assert decoded(verifier, mapped, prompt, settings).ids == decoded(verifier, None, prompt, settings).ids


def test_a_map_draft_made_of_the_verifier_is_accepted_where_it_can_follow():
    """The verifier's own rows, put in another order with a map back: every proposal is accepted, greedy and sampling."""
    net, shuffled = network("Llama", 0, tie_word_embeddings=False), network("Llama", 0, vocab_size=WIDTH + 1, tie_word_embeddings=False)
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))
    state = net.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = torch.cat([state[name][order], torch.zeros(1, 32)])
    shuffled.load_state_dict(state)
    verifier, draft = model(net), model(shuffled, support=order)
    for sampling in (Sampling(), Sampling(1.0, seed=3), Sampling(0.9, top_k=10, top_p=0.9, repetition_penalty=1.3)):
        generation = decoded(verifier, draft, prompt_of(12, 5), Settings(gamma=4, max_tokens=20, sampling=sampling))
        assert all(r.accepted == len(r.proposed) for r in generation.rounds) and len(generation.rounds) == 4


def test_end_tokens_of_a_network_end_both_modes():
    verifier, draft = model(network("Llama", 0)), model(network("Llama", 1))
    free = decoded(verifier, None, prompt_of(13, 5), Settings(max_tokens=20)).ids
    for at in (3, 7):
        verifier.ends = (free[at], 49)
        until = free[: free.index(free[at]) + 1]
        for gamma in (1, 2, 5):
            settings = Settings(gamma=gamma, max_tokens=20)
            for made in (decoded(verifier, drafts, prompt_of(13, 5), settings) for drafts in (draft, verifier)):
                assert (made.ids, made.finish) == (until, "eos")
