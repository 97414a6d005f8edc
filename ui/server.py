"""What stands around the app when it is served: who is answered, and the browser that is opened."""

from __future__ import annotations

import contextlib
import webbrowser

import streamlit as st
from starlette.middleware import Middleware

from ui.hosts import OnlyKnownHosts

MIDDLEWARE = [Middleware(OnlyKnownHosts)]


@contextlib.asynccontextmanager
async def lifespan(app):
    """Open the app in a browser where there is a screen for one (`make run` says so by server.headless)."""
    if not st.get_option("server.headless"):
        webbrowser.open(f"http://{st.get_option('browser.serverAddress')}:{st.get_option('browser.serverPort')}")
    yield
