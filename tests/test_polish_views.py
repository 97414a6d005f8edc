"""Card, stepper, charts and files of a strategy run."""

import csv
import dataclasses
import io
import json
import random
import re
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from cache.job import Job
from engine.alignment import align
from engine.analysis.uag import figures
from engine.models import cross_pairs as presets
from engine.request import Stage, Step
from engine.trace import Prompt, UagItem, from_json
from engine.trace.uag import CAUSES
from tests import toys
from tests.sample_uag import answer, sample_uag
from ui.card import share
from ui.polish import charts, controls, live, stepper
from ui.polish.card import caption, card_html
from ui.polish.takeaway import takeaway
from ui.polish.text import headline
from ui.takeaway import zip_all

HOSTILE = "<script>alert(1)</script>\"'&$x$ \x00\u202e"


@pytest.fixture(scope="module")
def run():
    made = sample_uag(notes=(HOSTILE,))
    return dataclasses.replace(made, tokens={**made.tokens, 100: HOSTILE.encode().hex()}, draft_tokens={**made.draft_tokens, 500: HOSTILE.encode().hex()})


def plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


def test_every_cell_stands_with_its_counts(run):
    f = figures(run)
    text = plain(card_html(run, f))
    for row in f.rows:
        assert f"{row.acceptance.above:,} of {row.acceptance.below:,} candidates" in text
        assert f"of {row.draft_acceptance.below:,} draft tokens" in text
    for cause in CAUSES:
        assert f"({sum(r.causes[cause] for r in f.rows):,})" in text
    assert "95 %" in text and "Student" in text and "<script" not in card_html(run, f)


def test_the_caption_says_what_was_run(run):
    words = caption(run)
    for part in ("verifier SmolLM2-135M-Instruct", "strategies none, naive, context, tli; k 2, 4; p 5", "2 prompts", "no chat template", "2026-12-01"):
        assert part in words


def test_demonstration_models_say_that_they_are(run):
    facts = {role: dataclasses.replace(m, name=f"bundled:polish-{role}") for role, m in run.models.items()}
    bundled = dataclasses.replace(run, models=facts)
    assert presets.DEMONSTRATION in card_html(bundled, figures(bundled)) and presets.DEMONSTRATION not in card_html(run, figures(run))


def test_the_stepper_shows_both_lanes_and_the_cause(run):
    for item in run.items:
        for result in item.results:
            assert stepper.round_count(result) == len(result.answer.rounds)
            for n, one in enumerate(result.answer.rounds):
                html = stepper.round_html(run, result, n)
                assert "<script" not in html and (one.cause is None) == ("Refused because" not in html)
                if one.cause:
                    assert f"<b>{one.cause}</b>" in html
                assert html.count(" t a\"") + html.count("class=\"t a\"") == one.accepted
                assert ("cut for the verifier" in html) == bool(one.proposed) and ("draft said" in html) == bool(one.draft_ids)


def test_letters_with_diacritics_are_outlined():
    assert stepper.marked("<gęś>") == "&lt;g<b>ę</b><b>ś</b>&gt;"
    assert stepper.marked("a\u0328x") == "<b>a\u0328</b>x"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["card", *charts.FIGURES])
def test_every_picture_is_well_formed_and_holds_the_caption(run, name, theme):
    svg = takeaway(run).svg(name, theme)
    said = " ".join(" ".join(ElementTree.fromstring(svg).itertext()).split())
    for words in ("strategies none, naive, context, tli", "2026-12-01", "torch 2.13.0"):
        assert words in said
    assert "<script" not in svg and not re.search(r"\bnan\b|\bNone\b", said)


def test_the_files_hold_every_round_and_every_cell(run):
    take = takeaway(run)
    cells = list(csv.DictReader(io.StringIO(take.tables["strategies"](), newline="")))
    assert len(cells) == 8 and {c["strategy"] for c in cells} == {"none", "naive", "context", "tli"}
    rounds = list(csv.DictReader(io.StringIO(take.tables["rounds"](), newline="")))
    assert len(rounds) == sum(len(r.answer.rounds) for i in run.items for r in i.results)
    assert sum(int(r["accepted"]) for r in rounds) == sum(int(float(c["accepted"])) for c in cells)
    data = json.loads(take.json(), parse_constant=lambda name: pytest.fail(name))
    assert len(data["figures"]["rows"]) == 8 and from_json(take.json()) == run
    html = take.html()
    assert "<script" not in html and "default-src 'none'" in html and html.rstrip().endswith("</html>")
    archive = zipfile.ZipFile(io.BytesIO(zip_all(take)))
    assert {"run.json", "run.html", "strategies.csv", "rounds.csv", "card.png", "acceptance.svg"} <= set(archive.namelist())


def test_a_run_without_answers_is_drawn_as_well():
    run = dataclasses.replace(sample_uag(), items=(UagItem(Prompt("x", ()), "a", refused="The prompt is empty."),), status="stopped")
    f = figures(run)
    assert "stopped" in card_html(run, f)
    take = takeaway(run, f)
    assert take.svg("card", "light") and take.html() and zip_all(take)
    with pytest.raises(ValueError, match="no figure"):
        take.svg("causes", "light")


def test_presets_name_pairs_of_both_engines_and_say_what_fits():
    assert {p.backend for p in presets.CROSS} == {"torch", "mlx"} and len({p.title for p in presets.CROSS}) == len(presets.CROSS)
    big = presets.CROSS[-1]
    assert "does not fit" in presets.words(big, 8 * 10**9) and "which fits" in presets.words(big, 64 * 10**9)


def test_kinds_of_prompts_have_their_own_figures_on_the_card_and_as_a_file(run):
    kinds = ("encyclopaedic", "<b>questions</b>")
    made = dataclasses.replace(run, items=tuple(dataclasses.replace(i, category=c) for i, c in zip(run.items, kinds)))
    f = figures(made)
    html = card_html(made, f)
    assert all(f"of {row.acceptance.below:,}</small>" in html for rows in f.by_category.values() for row in rows) and "<b>questions" not in html
    cells = list(csv.DictReader(io.StringIO(takeaway(made, f).tables["kinds"](), newline="")))
    assert [int(c["proposed"]) for c in cells] == [row.acceptance.below for rows in f.by_category.values() for row in rows]
    assert {c["category"] for c in cells} == set(kinds) and "kinds" not in takeaway(run).tables


def test_a_lone_tokenizer_says_how_many_tokens_it_makes():
    alone = align("Zażółć gęślą jaźń", [toys.vocabulary(toys.byte_level(), "bytes")])
    assert headline(alone) == "bytes cuts this text into 26 tokens, 8.67 a word."
    assert headline(align("", [toys.vocabulary(toys.byte_level(), "bytes")])) == "No text yet."


def test_a_run_on_its_way_shows_the_answer_and_what_was_kept(run):
    job = Job(controls.request_of(run), lambda control: iter(()), "title", None, {})
    job.start()
    assert "Reading" in live.growing((job.hear(Stage("Reading", done=0.1)), job.snapshot())[1])
    made = answer(random.Random(3), "context", 4)
    for one in made.rounds:
        job.hear(Step("context k=4", 1, one, run.tokens))
    html = live.growing(job.snapshot())
    kept, sent = sum(r.accepted for r in made.rounds), sum(len(r.proposed) for r in made.rounds)
    assert f"{kept} of {sent} kept" in html and f"{len(made.ids)} of {run.settings.max_tokens} tokens" in html and "<script" not in html
    assert f"So far context at k = 4 keeps most of its candidates: {share(kept / sent)} of {sent}." in html
    refused = [r for r in made.rounds if r.cause]
    assert f"{len(refused)} refused" in html and html.count("Last: ") == 1 and f"↻: {refused[-1].cause}</p>" in html
    assert html.count("not begun yet") == len(run.strategies) * len(run.ks)  # the verifier alone too, but for the one that goes


def test_the_answers_of_all_ways_stay_on_screen_while_the_next_one_is_written(run):
    job = Job(controls.request_of(run), lambda control: iter(()), "title", None, {})
    job.start()
    shown = {}
    for name, strategy, k in (("plain", None, 0), ("naive k=2", "naive", 2), ("context k=4", "context", 4)):
        job.hear(Stage(name, name))
        for one in answer(random.Random(k), strategy, k or 1).rounds:
            job.hear(Step(name, 1, one, run.tokens))
            html = live.growing(job.snapshot())
            shown[name] = html.count('class="t ')
    assert shown["plain"] < shown["naive k=2"] < shown["context k=4"]
    assert html.count('class="cell now"') == 1 and "So far" in html



def counted(joules, machine="", **timing):
    """The sample with so many joules in each timing, and whatever else."""
    def of(answer):
        return dataclasses.replace(answer, timings=tuple(dataclasses.replace(t, joules=joules, **timing) for t in answer.timings))

    made = sample_uag(machine=dataclasses.replace(sample_uag().machine, energy=machine))
    return dataclasses.replace(made, items=tuple(dataclasses.replace(
        i, plain=of(i.plain), results=tuple(dataclasses.replace(r, answer=of(r.answer)) for r in i.results)) for i in made.items))


def test_energy_stands_in_every_cell_and_file_or_the_reason_why_not():
    made = counted(60.0)
    f = figures(made)
    row, files = f.rows[0], takeaway(made, f)
    said = f"{60 * 2 / row.joules_per_token.below:.1f} J per token"
    assert said in plain(card_html(made, f)) and said in files.svg("card", "light") and "not available" not in card_html(made, f)
    first = next(csv.DictReader(io.StringIO(files.tables["strategies"]())))
    assert float(first["joules_per_token"]) == pytest.approx(row.joules_per_token.value)
    assert json.loads(files.json())["figures"]["plain_joules"]["above"] == 120.0
    from engine.commands.uag import describe, report
    assert "J/token" in describe(made, f) and report(made, f)["rows"][0]["joules_per_token"] == row.joules_per_token.value
    none = counted(None, machine="Energy is not available: no counter.")
    g = figures(none)
    for shown in (plain(card_html(none, g)), takeaway(none, g).svg("card", "dark"), describe(none, g)):
        assert "Energy is not available: no counter." in re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", shown)) and "J per token" not in shown


def test_a_disturbed_strategy_run_says_so_wherever_its_speed_stands():
    made = counted(None, processor_seconds=1.0, others_seconds=1.9, idle_seconds=0.0)
    f = figures(made)
    why = "other programs used 1.3 of 2 cores"
    html, files = card_html(made, f), takeaway(made, f)
    assert html.count(f'title="{why}"') == len(f.rows) and f"The timing was disturbed: {why}." in html
    assert "disturbed" in files.svg("card", "light") and why in plain(files.svg("speed", "light")).replace("\n", " ")
    assert next(csv.DictReader(io.StringIO(files.tables["strategies"]())))["disturbed"] == why
    from engine.commands.uag import describe, report
    assert report(made, f)["disturbed"] == f.disturbed and why in describe(made, f)
    assert "disturbed" not in card_html(sample_uag(), figures(sample_uag()))
