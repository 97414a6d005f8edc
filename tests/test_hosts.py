"""Who is answered: this machine and what was configured, never a foreign name that resolves to this machine."""

import os
import socket

import pytest

from tests.browser import Server
from ui import hosts, paths

LOCAL = ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.5.5.5", "[::1]", "[::ffff:127.0.0.1]"]
FOREIGN = ["evil.example", "localhost.evil.example", "evil-localhost", "192.168.1.7", "127.0.0.1.evil.example", "[2001:db8::1]", "0.0.0.0", "",
           "localhost@evil.example", "evil.example:80", "localhost:http", "localhost/x"]


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("port", ["", ":1", ":8501"])
def test_this_machine_is_known_at_every_port(name, port):
    assert hosts.known(hosts.host_of(name + port), ()) and hosts.known(hosts.host_of(f"http://{name}{port}"), ())


@pytest.mark.parametrize("name", FOREIGN)
def test_other_names_and_addresses_are_not(name):
    assert not hosts.known(hosts.host_of(name), ()) and not hosts.known(hosts.host_of(f"http://{name}"), ())


def test_what_was_configured_is_known():
    assert hosts.known("app.example", ("app.example",)) and not hosts.known("other.example", ("app.example",))
    assert hosts.known("a.app.example", ("*.app.example",)) and not hosts.known("badapp.example", ("*.app.example",))
    assert hosts.known("192.168.1.7", ("0.0.0.0",)) and hosts.known("2001:db8::1", ("::",)) and not hosts.known("evil.example", ("0.0.0.0", "::"))
    assert hosts.known("2001:db8::1", ("2001:db8:0::1",)) and hosts.known("evil.example", ("*",))


def test_two_hosts_or_none_are_not_answered():
    door = hosts.OnlyKnownHosts(None)
    local, evil = (b"host", b"localhost"), (b"Host", b"evil.example")
    assert door.answered([local]) and door.answered([local, (b"origin", b"http://localhost:3000")])
    for headers in ([], [local, evil], [local, local], [local, (b"origin", b"null")], [local, (b"Origin", b"localhost")],
                    [local, (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")]):
        assert not door.answered(headers)


@pytest.fixture(scope="module", params=[(), ("--server.address", "0.0.0.0", "--browser.serverAddress", "app.example",
                                             "--server.corsAllowedOrigins", "https://other.example")], ids=["as it comes", "configured"])
def served(request, tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("home"), *request.param)
    yield server, bool(request.param)
    server.close()


def status(server, host: str, origin: str | None, socket_wanted: bool) -> int:
    """What a request to the real server is answered with; 101 is an open WebSocket."""
    lines = [f"GET {'/_stcore/stream' if socket_wanted else '/'} HTTP/1.1", f"Host: {host}", *([f"Origin: {origin}"] if origin else [])]
    lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"] \
        if socket_wanted else ["Connection: close"]
    with socket.create_connection(("127.0.0.1" if os.name == "nt" else "localhost", server.port), timeout=20) as s:
        s.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return int(s.recv(64).split()[1])


def test_the_server_refuses_foreign_names_over_http_and_websocket(served):
    server, configured = served
    for host, origin in [("evil.example", "http://evil.example"), ("evil.example", None), ("localhost", "http://evil.example"), ("localhost", "null"),
                         (f"evil.example:{server.port}", f"http://evil.example:{server.port}")]:
        assert (status(server, host, origin, False), status(server, host, origin, True)) == (403, 403), (host, origin)
    here = f"localhost:{server.port}"
    for host, origin in [(here, f"http://{here}"), (here, None), ("localhost:1", "http://localhost:1"), ("127.0.0.1:2", "http://127.0.0.1:2"),
                         ("[::1]:3", "http://[::1]:3"), ("127.0.0.1", None), ("[::1]", None)]:
        assert (status(server, host, origin, False), status(server, host, origin, True)) == (200, 101), (host, origin)
    for host, origin in [("app.example", "http://app.example"), ("192.168.1.7:80", "http://192.168.1.7:80")]:
        wanted = (200, 101) if configured else (403, 403)
        assert (status(server, host, origin, False), status(server, host, origin, True)) == wanted, (host, origin)
    assert status(server, here, "https://other.example", True) == (101 if configured else 403)
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hosts", "/proc/self/environ", "/dev/zero", "/etc/x.txt", "/proc/1/x.json", "~/.docker/config.json",
                                  "/home/me/id_rsa", "/home/me/notes.md", "x\0.txt", "~nobody-here/x.txt"])
def test_a_file_that_is_no_prompt_file_is_refused_by_its_path(path):
    said = paths.refusal(path)
    assert said and said.endswith(".") and "root" not in said


def test_a_link_or_a_folder_with_the_name_of_a_prompt_file_is_refused(tmp_path):
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "good.txt").write_text("A prompt.\n")
    assert all(paths.refusal(str(tmp_path / name)) for name in ("link.txt", "folder.csv", "pipe.txt"))
    assert paths.refusal(str(tmp_path / "good.txt")) is None and paths.refusal(str(tmp_path / "none.parquet")) is None


@pytest.mark.parametrize("address, seen, here", [
    ("localhost", "http://localhost:8501/sinks", True), ("127.0.0.1", None, True), ("::1", "http://[::1]:8501/", True), (None, None, False),
    ("0.0.0.0", "http://localhost:8501/", False), ("192.168.1.7", None, False), ("localhost", "https://app.example/sinks", False)])
def test_paths_are_offered_only_where_the_server_is_on_a_loopback_address(monkeypatch, address, seen, here):
    monkeypatch.setattr(hosts.st, "get_option", lambda name: address)
    monkeypatch.setattr(type(hosts.st.context), "url", property(lambda self: seen))
    assert hosts.here_only() is here
