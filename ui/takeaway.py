"""What can be taken away from a run of any kind, and the files that are made of it. Nothing is made before it is asked for."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from typing import Callable, Mapping


class NoFigure(ValueError):
    """This run cannot fill the figure asked for; one sentence says so."""


@dataclass(frozen=True)
class Takeaway:
    """One run's exports. `page` is the page that opens it.

    `figures`: name → title as a person reads it. `svg(figure, theme)` draws one with the caption inside; NoFigure in one
    sentence where this run cannot fill it. `tables`: name → CSV text. `html()` and `json()` are whole documents.
    """

    run_id: str
    page: str
    caption: str
    figures: Mapping[str, str]
    svg: Callable[[str, str], str]
    html: Callable[[], str]
    json: Callable[[], str]
    tables: Mapping[str, Callable[[], str]] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """How its files begin."""
        return f"speclens-{self.run_id}"


def png(svg: str, scale: float = 2.0) -> bytes:
    """A drawing as PNG, `scale` pixels to a CSS pixel."""
    import vl_convert  # a renderer that no page needs before it is asked

    return vl_convert.svg_to_png(svg, scale=scale)


def zip_all(take: Takeaway, theme: str = "light") -> bytes:
    """Every export in one ZIP; figures that this run cannot fill are left out."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.json", encoded(take.json()))
        archive.writestr("run.html", encoded(take.html()))
        archive.writestr("caption.txt", encoded(take.caption + "\n"))
        for name, make in take.tables.items():
            archive.writestr(f"{name}.csv", encoded(make()))
        for name in take.figures:
            try:
                drawing = take.svg(name, theme)
            except ValueError:
                continue
            archive.writestr(f"{name}.svg", encoded(drawing))
            archive.writestr(f"{name}.png", png(drawing))
    return out.getvalue()


def encoded(made: str | bytes) -> bytes:
    """As a file's bytes: UTF-8, half a surrogate pair too, which only an imported run can hold."""
    return made.encode("utf-8", "surrogatepass") if isinstance(made, str) else made
