"""The certificate: an honest pair passes every check, and each kind of cheating fails the check that is there to find it."""

import types

import numpy as np
import pytest
from scipy import stats

from engine import audit
from engine import certify as subject
from engine.audit import Recorder, chi_square
from engine.certify import PROMPTS, certify, last, pair_key, to_data
from engine.errors import RequestError
from engine.models import registry
from engine.trace import Settings
from tests.toys import byte_level, tiny_llama

SHORT = dict(gamma=3, max_tokens=8, draws=500)
FEW = PROMPTS[:4]
NEVER = (lambda text: None, lambda: False)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return [registry.load(str(tiny_llama(folder / str(seed), byte_level(), seed=seed, eos_token_id=None)), device="cpu", dtype="float32")
            for seed in (0, 1)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path))


class Altered:
    """A model with some members replaced; everything else is the real one's."""

    def __init__(self, model, **members):
        self.__dict__.update(members, _model=model)

    def __getattr__(self, name):
        return getattr(self._model, name)


class Forgetful:
    """A session that keeps one token too many whenever it rolls back."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def rewind(self, count):
        self._session.rewind(max(count - 1, 0))


def altered_ops(model, **functions):
    return Altered(model, ops=types.SimpleNamespace(**{**vars(model.ops), **functions}))


def by_name(certificate):
    return {c.name: c for c in certificate.checks}


def test_an_honest_pair_passes_and_its_certificate_is_kept(pair):
    heard = []
    made = certify(*pair, FEW, **SHORT, tell=heard.append)
    checks = by_name(made)
    assert list(checks) == ["self-draft", "fresh prefill", "greedy equality", "chi-square"]
    assert made.passed and checks["self-draft"].figure == 1 and checks["greedy equality"].figure == 1
    assert 0 < checks["fresh prefill"].figure < 1e-3 and checks["chi-square"].figure > 0.001
    assert heard and all(c.sentence.endswith(".") for c in made.checks)
    assert last(pair_key(pair[0].facts, pair[1].facts)) == made and to_data(made)["passed"] is True


def test_prompt_lookup_is_certified_without_a_draft(pair):
    made = certify(pair[0], None, FEW, **SHORT)
    assert made.passed and made.draft is None and last(pair_key(pair[0].facts, None)) == made


def test_another_pair_has_no_certificate(pair):
    assert last(pair_key(pair[1].facts, None)) is None
    assert pair_key(pair[0].facts, pair[1].facts) != pair_key(pair[1].facts, pair[0].facts)


def test_a_damaged_certificate_counts_as_none(pair, tmp_path):
    key = pair_key(pair[0].facts, None)
    (tmp_path / "certificates").mkdir()
    for content in ("{", "[]", '{"checks": 3}'):
        (tmp_path / "certificates" / f"{key}.json").write_text(content)
        assert last(key) is None


def test_a_cache_that_keeps_a_refused_token_is_found(pair):
    verifier = Altered(pair[0], session=lambda capacity=None: Forgetful(pair[0].session(capacity)))
    made = by_name(certify(verifier, pair[1], FEW, **SHORT))
    assert not made["fresh prefill"].passed and not made["greedy equality"].passed


def test_a_judge_that_accepts_everything_is_found(pair):
    def lenient(p, proposal, uniform, width):
        if proposal is None:
            return pair[0].ops.judge_to_host(p, None, uniform, width)
        ids = [int(i) for i in proposal.ids]
        _, closing, _, at, q = pair[0].ops.judge_to_host(p, proposal, uniform, width)
        return len(ids), closing, ids, at, q

    made = by_name(certify(altered_ops(pair[0], judge_to_host=lenient), pair[1], FEW, **SHORT))
    assert not made["chi-square"].passed and not made["greedy equality"].passed
    assert made["self-draft"].passed  # its own tokens are rightly accepted; that is why one check would not do


def test_a_correction_drawn_from_p_instead_of_the_residual_is_found(pair):
    def careless(p, proposal, uniform, width):
        accepted, closing, ids, at, q = pair[0].ops.judge_to_host(p, proposal, uniform, width)
        if proposal is not None and accepted < len(ids):
            columns = None if p.ids is None else p.ids[accepted:accepted + 1]
            row = pair[0].ops.Distribution(p.probabilities[accepted:accepted + 1], columns)
            closing = int(pair[0].ops.draw(row, uniform[-1:])[0])
        return accepted, closing, ids, at, q

    made = by_name(certify(altered_ops(pair[0], judge_to_host=careless), pair[1], FEW, **{**SHORT, "draws": 2000}))
    assert not made["chi-square"].passed
    assert made["greedy equality"].passed  # greedy, p and the residual have the same best token


def test_a_stranger_as_its_own_draft_is_found(pair):
    """A model whose second session reads other weights: self-draft acceptance falls."""
    opened = []

    def session(capacity=None):
        opened.append(1)
        return pair[len(opened) % 2].session(capacity)

    check = subject._self_draft(Altered(pair[0], session=session), [subject.build(pair[0].vocabulary, FEW[0])], 3, 8, 1e-6, *NEVER)
    assert not check.passed and check.figure < 1


def test_a_changed_token_passes_only_within_the_measured_rounding(pair):
    prompt = subject.build(pair[0].vocabulary, FEW[0])
    settings = Settings(gamma=3, max_tokens=8)
    real = subject._ids(subject._decode("plain", pair[0], None, prompt, settings, lambda: False))
    gap = audit.gap(pair[0], [*prompt.ids, *real[:5]])
    other = real[:5] + [(real[5] + 1) % 200] + real[6:]
    within = subject._greedy_equality(pair[0], pair[1], [prompt], [other], settings, gap, *NEVER)
    beyond = subject._greedy_equality(pair[0], pair[1], [prompt], [other], settings, gap / 4, *NEVER)
    assert within.passed and not beyond.passed and within.figure == 0
    assert "index 5" in beyond.sentence and f"{gap:.2g}" in beyond.sentence


def test_rounding_of_a_sound_model_is_small_and_of_a_broken_one_is_not(pair):
    ids = list(range(40))
    assert 0 < audit.rounding(pair[0], ids, 4) < 1e-3
    calls = []

    def session(capacity=None):
        calls.append(1)
        return pair[len(calls) % 2].session(capacity)

    assert audit.rounding(Altered(pair[0], session=session), ids, 4) > 0.1


def test_the_recorder_knows_what_was_read(pair):
    recorder = Recorder(pair[0])
    session = recorder.session(16)
    session.feed([1, 2, 3], 0), session.feed([4, 5], 2), session.rewind(1), session.feed([6], 1)
    assert [ids for ids, _ in recorder.scored] == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]]
    assert recorder.scored[1][1] == pytest.approx(audit.forward(pair[0], [1, 2, 3, 4, 6], 1), abs=1e-4)


def test_stop_ends_the_checks_and_keeps_nothing(pair, tmp_path):
    with pytest.raises(subject.Stopped):
        certify(*pair, FEW, **SHORT, stop=lambda: True)
    assert not (tmp_path / "certificates").exists()


def test_unequal_vocabularies_are_refused(pair, tmp_path):
    other = registry.load(str(tiny_llama(tmp_path / "other")), device="cpu", dtype="float32")
    with pytest.raises(RequestError):
        certify(pair[0], other, FEW, **SHORT)


def test_built_in_prompts_are_enough_and_varied():
    assert len(PROMPTS) >= 20 and len(set(PROMPTS)) == len(PROMPTS)


@pytest.mark.parametrize("seed", range(5))
def test_chi_square_agrees_with_scipy(seed):
    luck = np.random.default_rng(seed)
    expected = luck.dirichlet(np.ones(12)) * 0.8 + 0.2 / 12
    observed = luck.multinomial(2000, expected)
    known = stats.chisquare(observed, expected * 2000)
    statistic, df, p = chi_square(observed, expected)
    assert (statistic, df, p) == (pytest.approx(known.statistic), 11, pytest.approx(known.pvalue, abs=1e-9))


def test_chi_square_pools_rare_cells_and_loses_no_count():
    expected = np.array([0.5, 0.4, *[0.1 / 1000] * 1000])
    observed = np.zeros(1002, dtype=int)
    observed[[0, 1, 7]] = 500, 400, 100  # all rare draws in one cell: pooled, that is as expected
    assert chi_square(observed, expected) == (pytest.approx(0, abs=1e-6), 2, pytest.approx(1))
    observed[[0, 1, 7]] = 500, 300, 200
    assert chi_square(observed, expected)[2] < 1e-9


def test_chi_square_joins_a_pool_that_is_still_too_small():
    observed, expected = np.array([600, 398, 2]), np.array([0.6, 0.398, 0.002])
    assert chi_square(observed, expected)[1] == 1


def test_chi_square_at_the_edges():
    assert chi_square(np.array([5, 1]), np.array([1.0, 0.0]))[2] == 0  # what cannot happen happened
    assert chi_square(np.array([50, 0]), np.array([1.0, 0.0])) == (0.0, 0, 1.0)  # one cell: nothing to test


def test_chi_square_is_level_under_the_truth():
    luck = np.random.default_rng(1)
    expected = np.array([0.4, 0.3, 0.2, 0.1])
    values = [chi_square(luck.multinomial(2000, expected), expected)[2] for _ in range(300)]
    assert 0.02 < np.mean(np.array(values) < 0.1) < 0.2  # a sound sampler fails at its level, not more often


