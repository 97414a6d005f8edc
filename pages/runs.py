"""Runs."""

from ui import session

session.setup()
