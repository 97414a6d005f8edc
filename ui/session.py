"""What one browser session remembers between script passes, and the set-up every page starts with.

A widget's own value dies when another page is drawn, so every control is mirrored in plain keys here. Nothing that must
survive a lost connection lives here: runs are in the store, running jobs in the worker.
"""

from __future__ import annotations

import html
import uuid

import streamlit as st

from ui import live, navigation, theme

OWNER, MEMORY = "speclens.owner", "speclens.controls"
# Streamlit's own CSV of a table leaves formulas in it (`ui.sheet`); Share ▾ has every table.
NO_CSV = '[data-testid="stElementToolbarButton"]:has([aria-label^="Download as CSV"]){display:none}'
HERE, BEFORE = "speclens.here", "speclens.before"  # the page of this pass, and of the one before it


def setup() -> None:
    """Every page calls this first; calling it again changes nothing (a deep link may run a page without app.py)."""
    navigation.through_the_front_door()
    owner()
    st.session_state.setdefault(MEMORY, {})
    st.session_state[BEFORE] = st.session_state.pop(HERE, None)
    st.html(f"<style>{theme.css()}{live.CSS}{NO_CSV}</style>")


def heading(page: str) -> None:
    """The screen's name and the question it answers."""
    draw(f'<div class="sl head"><h1>{navigation.SCREENS[page]}</h1><p>{navigation.QUESTIONS[page]}</p></div>')


def warm_up() -> None:
    """Every page calls this last: what tables and charts need is imported once all is drawn, not at the first switch to them.

    On the page's own thread. Two threads that import pandas at once, or this one and the worker's torch, can see it half made.
    """
    import altair  # noqa: F401
    import pandas  # noqa: F401


def owner() -> str:
    """A random name for this session, so that a job can be told to be one's own."""
    return st.session_state.setdefault(OWNER, uuid.uuid4().hex)


def remembered(name: str, default, prefix: str = "compare") -> str:
    """The widget key for control `name`, its value put back if the widget was not drawn for a while."""
    key = f"{prefix}.{name}"
    if key not in st.session_state:
        st.session_state[key] = st.session_state.setdefault(MEMORY, {}).get(key, default)
    elif not isinstance(st.session_state[key], str):
        # Where a second pass overtakes the first before the browser has drawn the widget, the widget starts at its lowest value
        # and sends that back, unless this pass sets it too. Not a text: it could overwrite what is being typed.
        st.session_state[key] = st.session_state[key]
    return key


def keep(*names: str, prefix: str = "compare") -> None:
    """Copy the drawn widgets' values to where a page switch cannot lose them."""
    memory = st.session_state.setdefault(MEMORY, {})
    for name in names:
        key = f"{prefix}.{name}"
        if key in st.session_state:
            memory[key] = st.session_state[key]


def put(values: dict, prefix: str = "compare") -> None:
    """Set controls from outside (a preset, a run's settings). Only before those widgets are drawn in this pass."""
    memory = st.session_state.setdefault(MEMORY, {})
    for name, value in values.items():
        key = f"{prefix}.{name}"
        memory[key] = value
        st.session_state[key] = value


def stayed(page: str) -> bool:
    """Whether the pass before this one was of the same page. To be asked once a pass: it says that this one is, too."""
    st.session_state[HERE] = page
    return st.session_state.get(BEFORE) == page


def query(name: str) -> str | None:
    """A query parameter, or None; never longer than an id may be."""
    value = st.query_params.get(name)
    return value[:200] if value else None


def set_query(**values: str | None) -> None:
    """Make the address say what is shown. All of it at once, for every change is a step back in the browser's history."""
    now = st.query_params.to_dict()
    wanted = {name: value for name, value in {**now, **values}.items() if value is not None}
    if wanted != now:
        st.query_params.from_dict(wanted)


def showable(text: str) -> str:
    """Text that can be sent to a browser: half a surrogate pair, which only an imported file can hold, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def draw(body: str, **how) -> None:
    """`st.html` for anything that may hold text of a prompt, a model or a file. The body is escaped already."""
    st.html(showable(body), **how)


def say(text: str, kind: str = "error") -> None:
    """One plain sentence in a coloured box. The text is data: escaped, never Markdown."""
    role = "alert" if kind == "error" else "status"
    draw(f'<div class="sl-say sl-say-{kind}" role="{role}">{html.escape(text)}</div>')
