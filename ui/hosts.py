"""Who is answered: only a browser on this machine, or under a name or address that the person configured.

A foreign name can be made to resolve to this machine (DNS rebinding), and any web page under it could then read prompts and start runs:
so a request whose Host or Origin is another name is refused before anything of the app is reached.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Awaitable, Callable
from urllib.parse import urlsplit

import streamlit as st

NAMED = ("server.address", "browser.serverAddress", "server.corsAllowedOrigins", "server.allowedHosts")  # options that name hosts
REFUSED = ("SpecLens answers only under localhost, a loopback address or an address that its server was given; start it with "
           "--browser.serverAddress NAME to serve it under another name.")


def host_of(address: str) -> str | None:
    """The host in a Host header ("localhost:8501", "[::1]:8501"), an address or an origin ("http://localhost"); None if there is none."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        _ = parts.port  # a ValueError if it is none
    except ValueError:
        return None
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.lower().rstrip(".")


def loopback(host: str | None) -> bool:
    """Whether a host is this machine, as seen from itself."""
    if host == "localhost" or (host or "").endswith(".localhost"):
        return True
    found = _ip(host)
    return found is not None and (getattr(found, "ipv4_mapped", None) or found).is_loopback


def known(host: str | None, configured: tuple[str, ...]) -> bool:
    """Whether `host` is of this machine or one of `configured`: names, addresses, *.DOMAIN, or * for all. Where one of them stands
    for every address of this machine (0.0.0.0, ::), any address will do, for it is a name that can be made to point elsewhere."""
    if host is None:
        return False
    if loopback(host):
        return True
    for name in configured:
        ip = _ip(name)
        if name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:])):
            return True
        if ip is not None and (ip == _ip(host) or ip.is_unspecified and _ip(host) is not None):
            return True
    return False


def configured() -> tuple[str, ...]:
    """The hosts that the server's options name."""
    found = []
    for option in NAMED:
        try:
            value = st.get_option(option)
        except RuntimeError:  # an option that this Streamlit does not have
            continue
        for one in [value] if isinstance(value, str) else value or ():
            bare = one.strip().strip("[]")
            found.append(bare if bare.startswith("*") or _ip(bare) is not None else host_of(one.strip()))
    return tuple(name for name in found if name)


def here_only() -> bool:
    """Whether this server can be reached from this machine alone, and is."""
    address, seen = st.get_option("server.address"), st.context.url
    return bool(address) and loopback(address.strip("[]")) and (not seen or loopback(host_of(urlsplit(seen).netloc)))


def _ip(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host or "")
    except ValueError:
        return None


class OnlyKnownHosts:
    """ASGI middleware: HTTP requests and WebSockets with a foreign Host or Origin get status 403."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app, self.configured = app, configured()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket") or self.answered(scope["headers"]):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the server makes it a 403
        else:
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain; charset=utf-8")]})
            await send({"type": "http.response.body", "body": REFUSED.encode()})

    def answered(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Exactly one Host and at most one Origin, and both known."""
        hosts, origins = ([value.decode("latin-1") for name, value in headers if name.lower() == wanted] for wanted in (b"host", b"origin"))
        return (len(hosts) == 1 and len(origins) < 2 and known(host_of(hosts[0]), self.configured)
                and all("://" in o and known(host_of(o), self.configured) for o in origins))
