"""The card and the files: whole, escaped, self-contained, with the caption in each."""

import csv
import dataclasses
import io
import json
import re
import struct
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from engine.analysis.metrics import metrics
from engine.trace import Sampling, from_json
from tests.sample import sample_run
from tests.test_ribbon import Reader
from ui import export, sheet
from ui.card import caption, card_html, sampling_words, share
from ui.charts import FIGURES
from ui.takeaway import png, zip_all

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> a<b i 3 > 2 & koniec </span> $5 __x__ \x00\x1b\u202e"


@pytest.fixture(scope="module")
def hostile():
    run = sample_run(hostile=True, polish=True, eos=True, temperature=0.0, diverge=20, prompt=HOSTILE)
    first = run.plain.ids[3]
    strange = {**run.tokens, first: "a\x00\x1b\u202e\ufffe]]>".encode().hex()}
    facts = dataclasses.replace(run.models["verifier"], title="<b>model</b>", notes=("<i>note</i>",))
    return dataclasses.replace(
        run, tokens=strange, name=HOSTILE, models=dict(run.models, verifier=facts), notes=("<u>n</u>",)
    )


def words_of(svg):
    return " ".join(" ".join(ElementTree.fromstring(svg).itertext()).split())


def test_card_gives_every_rate_its_denominator_and_explains_itself():
    run = sample_run()
    m = metrics(run)
    text = "".join(Reader(card_html(run, m, "20 of 20 greedy answers equal")).text)
    assert m["sentence"] in text
    assert f"{share(m['acceptance_rate'])}{m['accepted']} of {m['proposed']} proposed" in text
    assert f"{m['accepted']} of {m['judged']} judged" in text
    assert f"{m['ceiling']:.2f}×" in text and f"by FLOPs {m['ceiling_flops']:.2f}×" in text
    low, high = m["plain_tokens_per_second_range"]
    assert f"{m['plain_tokens_per_second']:.1f} tok/s({low:.1f}–{high:.1f})" in text
    assert "Certificate: 20 of 20 greedy answers equal" in text
    for words in (
        "SmolLM2-135M-Instruct @b179c9523d0e",
        "Q4_1 → bfloat16",
        "torch 2.13.0",
        "2-core x86-64",
        "γ 4",
        "temperature 0.7",
        "top-p 0.9",
        "seed 0",
        "64 tokens of at most 64",
        "3 runs a side",
        "2026-12-01 12:00:00 UTC",
    ):
        assert words in text and words in caption(run)


@pytest.mark.parametrize(
    "options", [dict(gamma=0), dict(speculative=False), dict(tokens=0), dict(tokens=1), dict(drafter="lookup")]
)
def test_undefined_figures_say_why_and_nothing_is_nan(options):
    run = sample_run(**options)
    m = metrics(run)
    html = card_html(run, m)
    assert not re.search(r"\bnan\b|\binf\b|None", html, re.I)
    if m["acceptance_rate"] is None:
        assert f'<abbr title="{m["reasons"]["acceptance_rate"]}">n/a</abbr>' in html
    for name in export.figure_names(run, m):
        assert not re.search(r"\bnan\b|\bNone\b", words_of(export.svg(run, m, name)), re.I)


def test_a_stopped_run_is_marked_and_asked_for_is_told_from_used():
    run = sample_run(status="stopped")
    facts = dataclasses.replace(run.models["verifier"], asked_device="mps", asked_dtype="float16")
    run = dataclasses.replace(run, models=dict(run.models, verifier=facts))
    html = card_html(run, metrics(run))
    assert '<span class="mark">stopped</span>' in html
    assert "cpu (asked mps)" in html and "asked float16" in html and caption(run).endswith("stopped")


def test_sampling_words_name_what_is_on():
    assert sampling_words(Sampling(0.0, seed=3)) == "greedy (temperature 0), seed 3"
    assert (
        sampling_words(Sampling(0.7, 40, 0.9, 0.05, 1.1, 0))
        == "temperature 0.7, top-k 40, top-p 0.9, min-p 0.05, repetition penalty 1.1, seed 0"
    )


def test_shares_never_round_something_to_nothing():
    assert [share(v) for v in (0, 0.004, 0.614, 0.996, 1)] == ["0 %", "0.4 %", "61 %", "99.6 %", "100 %"]


def test_the_html_file_is_alone_and_inert(hostile):
    html = export.html(hostile, metrics(hostile), "<b>certificate</b>")
    reader = Reader(re.sub(r"<(meta|!doctype)[^>]*>", "", html))
    assert not reader.tags & {"script", "img", "u", "iframe", "link", "object", "a", "image", "use", "foreignobject"}
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")]
    assert not re.findall(r"https?://(?!www\.w3\.org/)[^\s\"'<]+", html)
    assert "default-src 'none'" in html and "color-scheme:light dark" in html and "@import" not in html
    assert (
        "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        and "&lt;b&gt;certificate&lt;/b&gt;" in html
        and "&lt;i&gt;note&lt;/i&gt;" in html
    )
    assert html.count("<svg") == len([n for n in export.figure_names(hostile, metrics(hostile)) if n in FIGURES])
    assert caption(hostile) in "".join(reader.text) and "\ufffd" not in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_picture_is_well_formed_and_holds_the_caption(hostile, theme):
    m = metrics(hostile)
    for name in export.figure_names(hostile, m):
        svg = export.svg(hostile, m, name, theme)
        said = words_of(svg)
        for words in ("<b>model</b>", "torch 2.13.0", "seed 0", "2026-12-01"):
            assert words in said, name
        assert "<script" not in svg and "\ufffd" not in svg


def test_png_is_a_png_at_twice_the_size():
    run = sample_run(tokens=20)
    m = metrics(run)
    for name in ("card", "acceptance"):
        data = png(export.svg(run, m, name))
        width = float(re.search(r'width="([\d.]+)"', export.svg(run, m, name)).group(1))
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", data[16:20])[0] == pytest.approx(2 * width, abs=2)


def test_an_unknown_figure_is_named():
    run = sample_run(gamma=0)
    with pytest.raises(ValueError, match="no figure “entropy”"):
        export.svg(run, metrics(run), "entropy")


def test_csv_holds_every_token_with_its_exact_text():
    run = sample_run(hostile=True, polish=True, eos=True, diverge=30)
    text = export.csv(run)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for side in ("plain", "speculative"):
        kept = [r for r in rows if r["side"] == side and r["index"] != ""]
        assert tuple(int(r["id"]) for r in kept) == getattr(run, side).ids
        assert "".join(sheet.exact(r["text"]) for r in kept) == getattr(run, side).text
    m = metrics(run)
    count = {s: sum(r["state"] == s for r in rows) for s in ("accepted", "rejected", "discarded", "correction", "bonus")}
    assert count == {
        "accepted": m["accepted"],
        "rejected": m["rejected"],
        "discarded": m["discarded"],
        "correction": m["corrections"],
        "bonus": m["bonuses"],
    }
    assert "'=1+1" in {r["text"] for r in rows} and rows[0]["caption"] == caption(run)
    assert all(bytes.fromhex(r["bytes"]) for r in rows)


def test_json_reads_back_as_the_same_run(hostile):
    text = export.json(hostile, metrics(hostile))
    assert from_json(text) == hostile
    data = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert data["caption"] == caption(hostile) and data["metrics"]["proposed"] == metrics(hostile)["proposed"]


def test_the_zip_holds_everything():
    run = sample_run(tokens=24, repeats=2)
    m = metrics(run)
    archive = zipfile.ZipFile(io.BytesIO(zip_all(export.takeaway(run, m))))
    names = export.figure_names(run, m)
    assert set(archive.namelist()) == {"run.json", "tokens.csv", "run.html", "caption.txt"} | {
        f"{n}.{e}" for n in names for e in ("svg", "png")
    }
    assert from_json(archive.read("run.json")) == run and archive.testzip() is None
    assert set(names) == {"card", "ribbon", *FIGURES}


def test_a_long_run_says_what_its_picture_leaves_out():
    run = sample_run(tokens=1200)
    said = words_of(export.svg(run, metrics(run), "card"))
    assert re.search(r"… \d+ more tokens; the HTML and CSV files hold all of them", said)
