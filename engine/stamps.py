"""When a run was made: the id that sorts by it, and how a person reads it."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone


def new_id() -> str:
    """A fresh id that sorts by time, e.g. 20261130-053012-ab12cd (UTC)."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def moment(created: str) -> datetime:
    """An ISO 8601 time as a UTC datetime; without an offset it is UTC already. ValueError if it is none."""
    found = datetime.fromisoformat(created.replace("Z", "+00:00"))
    return found.replace(tzinfo=timezone.utc) if found.tzinfo is None else found.astimezone(timezone.utc)


def shown(created: str, seconds: bool = True) -> str:
    """2026-12-01 12:00:00 UTC: a stored time as a person reads it, always with its zone; what is no time stays as it is."""
    try:
        return f"{moment(created):%Y-%m-%d %H:%M:%S} UTC" if seconds else f"{moment(created):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return created
