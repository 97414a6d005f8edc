"""Start."""

from ui import session

session.setup()
