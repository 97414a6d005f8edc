"""Does a draft fit a verifier: token → id maps decide, never sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tokenizers import Tokenizer
from tokenizers import models as backends

from engine import pair
from engine.errors import RequestError
from tests.toys import fast, tiny_llama


def words(order: list[str]):
    backend = backends.WordLevel({w: i for i, w in enumerate(order)}, unk_token="<unk>")
    return fast(Tokenizer(backend), unk_token="<unk>", eos_token="</s>")


NINE = ["<unk>", "</s>", "a", "b", "c", "d", "e", "f", "g"]
TEN = [*NINE, "h"]
SWAPPED = [*TEN[:3], TEN[4], TEN[3], *TEN[5:]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    at = tmp_path_factory.mktemp("pairs")
    made = {
        "verifier": tiny_llama(at / "verifier", words(NINE), vocab_size=12, hidden_size=64, num_hidden_layers=4),
        "draft": tiny_llama(at / "draft", words(NINE), vocab_size=10),
        "ten": tiny_llama(at / "ten", words(TEN), vocab_size=10),
        "swapped": tiny_llama(at / "swapped", words(SWAPPED), vocab_size=10),
    }
    return {name: str(folder) for name, folder in made.items()}


def test_padded_widths_do_not_matter(folders):
    """SD-09 (a): draft width 10, verifier width 12, nine real tokens in both."""
    found = pair.check(folders["verifier"], folders["draft"], "float32")
    assert found.same_vocabulary and "Same vocabulary" in found.reason
    assert found.size_ratio > 4


def test_equal_sizes_with_two_ids_swapped_are_refused_with_the_reason(folders):
    """SD-09 (b)."""
    found = pair.check(folders["ten"], folders["swapped"])
    assert not found.same_vocabulary
    assert found.reason == ("The vocabularies differ in 2 of 10 tokens: 'b' is 3 in the verifier and 4 in the draft; "
                            "'c' is 4 in the verifier and 3 in the draft. Pairs whose tokenizers differ run on the Polish page (`python -m engine uag`).")


def test_a_missing_token_is_named(folders):
    assert "'h' is missing in the draft" in pair.check(folders["ten"], folders["draft"]).reason
    assert "'h' is missing in the verifier" in pair.check(folders["draft"], folders["ten"]).reason


def test_many_differences_are_counted_and_a_few_named():
    said = pair.differ({f"t{i}": i for i in range(1000)}, {f"u{i}": i for i in range(1000)})
    assert "2,000 of 2,000" in said and said.count("missing") == 3 and "1,997 more" in said


def test_padding_tokens_of_a_converter_are_no_difference():
    assert pair.differ({"a": 0}, {"a": 0, "[PAD1]": 1, "[PAD2]": 2}) is None
    assert pair.differ({"a": 0}, {"a": 0, "[PAD]": 1}) is not None


def test_hostile_tokens_stay_on_one_line():
    said = pair.differ({"\n\x1b[31m" + "x" * 500: 0}, {})
    assert "\n" not in said and "\x1b" not in said and len(said) < 200


def test_a_self_draft_breaks_even_only_at_every_token(folders):
    found = pair.check(folders["verifier"], folders["verifier"])
    assert (found.same_vocabulary, found.size_ratio, found.flops_ratio, found.break_even) == (True, 1.0, 1.0, 1.0)


def test_break_even_is_c_and_there_is_none_for_a_draft_dearer_than_its_verifier(folders):
    cheap, dear = pair.check(folders["verifier"], folders["draft"]), pair.check(folders["draft"], folders["verifier"])
    assert cheap.break_even == cheap.flops_ratio < 0.5
    assert dear.flops_ratio > 1 and dear.break_even is None


def test_the_forecast_holds_both_models(folders):
    found = pair.check(folders["verifier"], folders["draft"], "float32", 64)
    assert [p.name for p in found.forecast.parts] == [folders["verifier"], folders["draft"]]
    assert found.forecast.sentence.startswith("0.0 of ")


@pytest.mark.parametrize("dtype, half", [("bfloat16", True), ("float16", True), ("float32", False)])
def test_half_precision_is_told_beforehand(folders, dtype, half):
    found = pair.check(folders["verifier"], folders["draft"], dtype, device="cpu")
    assert found.notes == ((pair.HALF_NOTE.format(dtype),) if half else ()) and found.forecast.dtype == dtype
    asked = pair.check(folders["verifier"], folders["draft"], "auto", device="cpu")
    assert asked.forecast.dtype in ("float32", "bfloat16") and bool(asked.notes) is (asked.forecast.dtype == "bfloat16")


def test_a_missing_model_is_one_sentence(folders):
    with pytest.raises(RequestError, match="/nie/ma"):
        pair.check(folders["verifier"], "/nie/ma")


@dataclass
class Loaded:
    """As much of a loaded model as the check looks at."""

    ids: dict = field(default_factory=lambda: {"a": 0})
    can_rewind: bool = True
    title: str = "M"
    support: list | None = None

    @property
    def facts(self):
        return self

    @property
    def vocabulary(self):
        return self

    def ids_by_token(self):
        return self.ids


def test_loaded_models_with_other_vocabularies_are_refused():
    pair.check_models(Loaded(), Loaded())
    with pytest.raises(RequestError, match="D cannot draft for V: the vocabularies differ in 1 of 1 tokens.*Polish page"):
        pair.check_models(Loaded(title="V"), Loaded({"a": 1}, title="D"))


def test_a_cross_pair_may_differ_and_is_told_where_it_does_not():
    assert pair.check_cross(Loaded(title="V"), Loaded({"a": 1}, title="D")) is None
    assert pair.check_cross(Loaded(title="V"), Loaded(title="D")).startswith("D has the same vocabulary as V")
    same = Loaded(title="V")
    assert pair.check_cross(same, same)


@pytest.mark.parametrize("check", [pair.check_models, pair.check_cross])
@pytest.mark.parametrize("verifier, draft", [(True, False), (False, True)])
def test_a_model_that_cannot_be_rolled_back_is_refused(verifier, draft, check):
    with pytest.raises(RequestError, match="R keeps a state that cannot be rolled back"):
        check(Loaded(can_rewind=verifier, title="V" if verifier else "R"),
              Loaded(can_rewind=draft, title="V" if draft else "R"))
    same = Loaded(can_rewind=False, title="R")
    with pytest.raises(RequestError):
        check(same, same)


@pytest.mark.parametrize("draft", [None, Loaded(), "itself"])
def test_a_draft_with_a_stored_map_is_no_verifier(draft):
    """Its ids are its own: read as the verifier's they would be other tokens."""
    verifier = Loaded(title="D", support=[0, 7, 3])
    with pytest.raises(RequestError, match="^D is a draft that scores only 3 of its verifier's tokens, so it cannot be a verifier"):
        pair.check_models(verifier, verifier if draft == "itself" else draft)


def test_the_bundled_verifier_fits_itself_by_any_name():
    from engine.models import source

    folder = str(source.resolve("bundled:smollm2-135m").folder)
    found = pair.check("bundled:smollm2-135m", folder)
    assert found.same_vocabulary and found.flops_ratio == 1.0
