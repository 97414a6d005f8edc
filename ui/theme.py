"""The one place that holds colours, type and the look of a token state.

HTML uses `light-dark()`: it follows the `color-scheme` of the page around it (Streamlit's theme, or the reader's own in an
exported file), so one string serves both. Charts and SVG cannot, and take a theme, "light" or "dark".

State colours were computed for colour-blind readers; each state has a second cue that is not a colour.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.trace import ACCEPTED, BONUS, CORRECTION, DISCARDED, PLAIN, REJECTED

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


@dataclass(frozen=True)
class Colours:
    """One theme. `quiet` is secondary text, `faint` lines and marks, `area` a very light fill."""

    ink: str
    quiet: str
    faint: str
    line: str
    area: str
    paper: str
    accent: str
    neutral: str  # the verifier-only side, wherever it stands beside the accent
    accepted: str
    rejected: str
    closing: str  # correction and bonus
    edge: str  # their border


COLOURS = {
    "light": Colours(ink="#111111", quiet="#5a6069", faint="#8b919a", line="#d9dce1", area="#f5f6f8", paper="#ffffff",
                     accent="#1565b0", neutral="#9aa1ab", accepted="#7dbdf0", rejected="#f09a55", closing="#fff3a3",
                     edge="#a08a00"),
    "dark": Colours(ink="#ffffff", quiet="#a9b0ba", faint="#7f8791", line="#363c45", area="#1a1f27", paper="#0e1117",
                    accent="#7dbdf0", neutral="#737b86", accepted="#1565b0", rejected="#6e2b00", closing="#7d7000",
                    edge="#e8d64a"),
}

# state → (class letter, sign, what it means)
STATES = {
    ACCEPTED: ("a", "", "drafted, and the verifier agreed"),
    REJECTED: ("r", "✗", "drafted, judged and refused"),
    DISCARDED: ("x", "┄", "drafted after a rejection, never judged"),
    CORRECTION: ("c", "↻", "the verifier's token after a rejection"),
    BONUS: ("b", "+", "the verifier's extra token after a clean sweep"),
    PLAIN: ("p", "", "written by the verifier alone"),
}


def colours(theme: str) -> Colours:
    """The colours of "light" or "dark"; anything else is light."""
    return COLOURS.get(theme, COLOURS["light"])


def chart_config(theme: str) -> dict:
    """Vega-Lite config: quiet axes, one accent, system fonts, no frame."""
    c = colours(theme)
    axis = dict(labelColor=c.quiet, titleColor=c.quiet, gridColor=c.line, domainColor=c.line, tickColor=c.line,
                labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelFont=SANS, titleFont=SANS, gridOpacity=0.7,
                labelPadding=6, titlePadding=8)
    return dict(
        background="transparent", font=SANS, view=dict(stroke=None), padding=6, axis=axis,
        title=dict(color=c.ink, subtitleColor=c.quiet, fontSize=14, subtitleFontSize=12, fontWeight=600, anchor="start",
                   font=SANS, subtitleFont=SANS, subtitlePadding=5, offset=12, frame="bounds"),
        legend=dict(labelColor=c.quiet, titleColor=c.quiet, labelFont=SANS, titleFont=SANS, labelFontSize=12, orient="top",
                    title=None, symbolType="square", padding=0, columnPadding=18),
        bar=dict(color=c.accent), point=dict(color=c.accent, filled=True), rule=dict(color=c.faint),
        text=dict(color=c.ink, font=SANS, fontSize=12), line=dict(color=c.accent))


def css() -> str:
    """Everything the HTML of `ui` needs, for one <style> element. Put it on a page once."""
    light, dark = COLOURS["light"], COLOURS["dark"]
    names = ("ink", "quiet", "faint", "line", "area", "paper", "accent", "neutral", "accepted", "rejected", "closing", "edge")
    variables = "".join(f"--{n}:light-dark({getattr(light, n)},{getattr(dark, n)});" for n in names)
    return (_CSS.replace("$VARIABLES", variables).replace("$SANS", SANS).replace("$MONO", MONO))


_CSS = """
.sl{$VARIABLES;color:var(--ink);font:400 15px/1.45 $SANS;font-variant-numeric:tabular-nums;text-align:left}
.sl *{box-sizing:border-box}
.sl.sl :is(p,dl,dd,dt,h2,h3,figure,ol,ul,li){margin:0;padding:0}
.sl .quiet{color:var(--quiet)} .sl .num{font-family:$MONO;font-variant-numeric:tabular-nums}
.sl abbr{text-decoration:none;cursor:help}

/* tokens. A space has its dot as a background: thousands of pseudo-elements would take a browser half a second */
.sl .ribbon{position:relative;border:1px solid var(--line);border-radius:6px;background:var(--paper)}
.sl .tokens{font:400 14px/1.85 $MONO;white-space:pre-wrap;overflow-wrap:anywhere;tab-size:4;padding:8px 10px;
  min-height:2.6em;
  max-height:var(--tall,23em);overflow:auto;scrollbar-width:thin;scrollbar-color:var(--line) transparent}
.sl .t{font:400 14px/1.3 $MONO;white-space:pre;padding:1px 0;border-radius:2px;unicode-bidi:isolate;outline:0;
  cursor:default;
  box-shadow:1px 0 0 var(--paper)}
.sl .t.l{white-space:pre-wrap} .sl .t i{font-style:normal}
.sl .t.a{background-color:var(--accepted);border-bottom:2px solid var(--ink)}
.sl .t.r{background-color:var(--rejected);text-decoration:line-through 1px}
.sl .t.x{color:var(--quiet);border-bottom:1.5px dashed var(--faint)}
.sl .t.c,.sl .t.b{background-color:var(--closing);border:1px solid var(--edge)}
.sl .t.r,.sl .t.x{user-select:none;-webkit-user-select:none}
.sl .t:hover,.sl .t:focus{outline:2px solid var(--accent);outline-offset:1px}
.sl .t .m::before{content:attr(data-m);font-size:11px;margin:0 1px;opacity:.8;display:inline-block;text-decoration:none}
.sl .t.w,.sl .t .s{
  background-image:radial-gradient(circle at .3em 56%,color-mix(in srgb,currentColor 55%,transparent) .8px,transparent 1.3px);
  background-size:.602em 100%;background-repeat:no-repeat}
.sl .t .h::before{content:"→";display:inline-block;width:0;opacity:.5}
.sl .t .n::before{content:"⏎";opacity:.5}
.sl .t .k::before{content:attr(data-m);font-size:11px;letter-spacing:-.02em;opacity:.75}
.sl .t .k.o{font-size:0} .sl .t .k.e::before{border:1px solid currentColor;border-radius:7px;padding:0 4px;margin:0 1px}
.sl .split{color:var(--accent);font:600 11px/1 $SANS;user-select:none;-webkit-user-select:none;white-space:nowrap;
  font-style:normal}
.sl .split::before{content:attr(data-m);padding:0 3px 0 2px}
.sl .caret{display:inline-block;width:.55em;height:1.05em;vertical-align:-.15em;background:var(--accent)}

/* the popover: anchored to its token, a sheet at the foot of a narrow screen */
.sl .t:hover::after,.sl .t:focus::after{content:attr(data-d);position:fixed;z-index:1000;white-space:pre-wrap;
  text-align:left;
  width:max-content;max-width:min(52ch,calc(100vw - 24px));padding:8px 11px;border:1px solid var(--line);border-radius:6px;
  background:var(--paper);color:var(--ink);font:400 12px/1.5 $MONO;box-shadow:0 4px 18px rgb(0 0 0/.18);pointer-events:none;
  overflow-wrap:anywhere;left:12px;bottom:12px;opacity:1;user-select:none;-webkit-user-select:none}
.sl .t:hover::after{z-index:1001} .sl .tokens:hover .t:focus:not(:hover)::after{content:none}
@supports (position-area:block-end span-inline-end){@media (min-width:641px){
  .sl .t:hover::after,.sl .t:focus::after{left:auto;bottom:auto;margin:6px 0;position-area:block-end span-inline-end;
    position-try-fallbacks:flip-inline,flip-block,flip-block flip-inline}}}
@media (max-width:640px){.sl .t:hover::after,.sl .t:focus::after{left:8px;right:8px;bottom:8px;width:auto;max-width:none}}

/* the card */
.sl.card{border:1px solid var(--line);border-radius:10px;background:var(--paper);padding:20px 22px 16px;display:grid;
  gap:16px}
.sl .headline{font-size:19px;line-height:1.35;font-weight:600;letter-spacing:-.01em;text-wrap:pretty}
.sl .mark{display:inline-block;border:1px solid currentColor;border-radius:9px;padding:0 8px;font-size:12px;
  font-weight:500;color:var(--quiet);
  vertical-align:2px;margin-left:6px}
.sl .sides{display:grid;grid-template-columns:1fr 1fr;gap:18px}
.sl .side{min-width:0;display:grid;gap:7px;align-content:start}
.sl .side h3{font-size:12px;font-weight:600;letter-spacing:.05em;color:var(--quiet)}
  .sl .side h3 b{text-transform:uppercase;font-weight:600}
.sl .speed{display:flex;flex-wrap:wrap;align-items:baseline;column-gap:14px;font-size:13px;color:var(--quiet)}
.sl .speed b{font-size:22px;font-weight:600;color:var(--ink);letter-spacing:-.01em} .sl .fast b{color:var(--accent)}
.sl .legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--quiet)}
.sl .legend .t{color:var(--ink);padding:1px 4px;margin-right:5px} .sl .legend .t.x{color:var(--quiet)}
.sl.sl dl.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:14px 20px;
  border-top:1px solid var(--line);
  padding-top:14px}
.sl .figures dt{font-size:13px;color:var(--quiet)} .sl .figures dd{font-size:18px;font-weight:600;line-height:1.3}
.sl .figures small,.sl .bars small{display:block;font-size:12px;font-weight:400;color:var(--quiet);line-height:1.35}
.sl .pair{display:grid;grid-template-columns:1fr 1fr;gap:18px;font-size:13px}
.sl .pair h3{font-size:13px;font-weight:400;color:var(--quiet);margin-bottom:6px}
.sl .bars{display:flex;gap:10px} .sl .bars>div{flex:1 1 0;min-width:0;max-width:84px}
.sl .bars .well{height:44px;background:var(--area);border-radius:3px;display:flex;align-items:flex-end}
.sl .bars .well i{display:block;width:100%;background:var(--accent);border-radius:3px}
.sl .stack{display:flex;height:18px;border-radius:3px;overflow:hidden;gap:1px}
.sl .stack i{display:block} .sl .v{background:var(--neutral)} .sl .d{background:var(--accent)}
  .sl .o{background:var(--line)}
.sl .keys{display:flex;flex-wrap:wrap;gap:2px 16px;margin-top:6px;color:var(--quiet);font-size:13px}
.sl .keys i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.sl .notes{font-size:13px;color:var(--quiet);list-style:none} .sl .notes li{margin:0}
.sl.sl p.caption{border-top:1px solid var(--line);padding-top:10px;font-size:12px;line-height:1.5;color:var(--quiet);
  overflow-wrap:anywhere}
.sl .prompt{font:400 14px/1.5 $MONO;white-space:pre-wrap;overflow-wrap:anywhere;max-height:6em;overflow:auto;
  color:var(--quiet)}

/* one round */
.sl.round{display:grid;gap:10px} .sl .cells{display:flex;flex-wrap:wrap;gap:8px}
.sl .cell{border:1px solid var(--line);border-radius:6px;padding:8px 11px 9px;min-width:132px;flex:0 1 auto;max-width:100%}
.sl .cell>b{display:block;font-size:12px;font-weight:500;color:var(--quiet);margin-bottom:4px}
.sl .cell dl{display:grid;grid-template-columns:auto 1fr;gap:0 10px;font-size:12px;margin-top:6px}
.sl .cell dt{color:var(--quiet)} .sl .cell dd{font-family:$MONO;text-align:right;white-space:nowrap}
.sl .cell.put{border-color:var(--edge)}
.sl .round-line{font-size:13px;color:var(--quiet)}

@media (max-width:640px){.sl.card{padding:14px 14px 12px;gap:14px} .sl .sides,.sl .pair{grid-template-columns:1fr}
  .sl.sl dl.figures{grid-template-columns:1fr 1fr;gap:12px 14px} .sl .headline{font-size:17px} .sl .cell{flex:1 1 130px}
  .sl .tokens{--tall:17em}}
"""
