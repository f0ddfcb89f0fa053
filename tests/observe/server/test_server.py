"""The server over real sockets: what it shows, and what it refuses."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_commands import write_run
from tests.kit.synthetic import block_of, falling_loss, troubled_run

from trimtab.diagnosis import diagnose
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.observe.server.http_server import Access, RunServer, is_loopback
from trimtab.observe.server.hub import Hub, find_run_folders


class Client:
    """Asks a server, with the headers that a browser sends."""

    def __init__(self, server: RunServer) -> None:
        self.server = server
        self.port = server.access.port
        self.hub = server.hub

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            self.headers = dict(answer.getheaders())
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stream(self, path: str) -> Iterator[dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")
        try:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def id_of(self, name: str) -> str:
        return next(id for id, feed in self.hub.feeds.items() if feed.name == name)


def write_runs(folder: Path) -> Path:
    write_run(troubled_run(), folder / "bad")
    write_run(block_of({"loss": falling_loss(300)}), folder / "deeper" / "good")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs(tmp_path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from serving(write_runs(tmp_path_factory.mktemp("runs")))


def serving(*roots: Path, host: str = "127.0.0.1", token: str | None = None) -> Iterator[Client]:
    hub = Hub(list(roots))
    server = RunServer(host, 0, hub, diagnose, token)
    hub.start()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Client(server)
    finally:
        hub.close()
        server.shutdown()
        server.server_close()
        thread.join(10)


class TestPages:
    def test_the_fleet_lists_every_run_below_a_folder(self, client: Client) -> None:
        status, page = client.get("/")
        assert status == 200
        assert '"name":"bad"' in page
        assert '"name":"deeper/good"' in page
        rows = client.hub.fleet_since(-1)["rows"]
        by_name = {row["name"]: row for row in rows}
        assert by_name["bad"]["state"] == "alarm"
        assert by_name["bad"]["why"].startswith(
            "non-finite loss, non-finite gradient norm since step 900, dead; do: stop"
        )
        assert by_name["deeper/good"]["state"] == "ended"
        assert by_name["bad"]["order"] < by_name["deeper/good"]["order"]

    def test_a_run_has_its_page_and_its_postmortems(self, client: Client) -> None:
        id = client.id_of("bad")
        status, page = client.get(f"/run/{id}/")
        assert status == 200
        assert "connect-src 'self'" in page
        assert 'href="incident/1"' in page
        status, page = client.get(f"/run/{id}/incident/1")
        assert status == 200
        assert "Root cause" in page
        assert client.get(f"/run/{id}/incident/77")[0] == 404

    def test_one_run_is_shown_at_once(self, tmp_path: Path) -> None:
        write_run(troubled_run(), tmp_path / "bad")
        for client in serving(tmp_path / "bad"):
            assert client.get("/")[0] == 303
            assert client.headers["Location"].startswith("/run/")

    def test_a_damaged_journal_shows_what_is_readable(self, runs: Path) -> None:
        sealed = next((runs / "bad" / "trimtab" / "journal").glob("*.seg"))
        content = bytearray(sealed.read_bytes())
        content[len(content) // 2] ^= 0xFF
        sealed.write_bytes(content)
        for client in serving(runs):
            status, page = client.get(f"/run/{client.id_of('bad')}/")
            assert status == 200
            assert sealed.name in page

    def test_a_run_that_cannot_be_judged_says_why(self, tmp_path: Path) -> None:
        RunDirectory(tmp_path / "<b>new</b>").write_manifest({})
        RunDirectory(tmp_path / "other").write_manifest({})
        for client in serving(tmp_path):
            status, page = client.get(f"/run/{client.id_of('<b>new</b>')}/")
            assert status == 200
            assert "holds no step" in page
            assert "<h1>&lt;b&gt;new&lt;/b&gt;</h1>" in page


class TestLive:
    def test_records_and_incidents_arrive_within_a_second(self, tmp_path: Path) -> None:
        run = RunDirectory(tmp_path / "x1")
        run.write_manifest({})
        journal = JournalWriter(run)
        journal.append(0, {"loss": 4.0, "clock": time.time()})
        write_run(block_of({"loss": falling_loss(30)}), tmp_path / "x2")
        for client in serving(tmp_path):
            feed = client.hub.feeds[client.id_of("x1")]
            deadline = time.monotonic() + 10
            while feed.totals.last_step < 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            stream = client.stream(f"/run/{client.id_of('x1')}/events?after={feed.version}")
            fleet = client.stream(f"/events?after={client.hub.version}")
            began = time.monotonic()
            journal.append(1, {"loss": 3.0, "clock": time.time()})
            found = {"symptoms": ["loss spike"], "cause": "F02 x", "tone": "alarm"}
            journal.event("incident", 1, number=1, onset=1, **found, action="Stop.")
            seen: list[dict[str, Any]] = []
            while not any(message["incidents"] for message in seen):
                seen.append(next(stream))
            assert time.monotonic() - began < 5  # a second on a quiet machine: scripts/bench pages
            assert [1, 3.0] in [point for m in seen for point in m["values"].get("loss", [])]
            rows = [row for row in next(fleet)["rows"] if row["name"] == "x1"]
            while not rows or rows[0]["state"] != "alarm":
                rows = [row for row in next(fleet)["rows"] if row["name"] == "x1"]
            assert rows[0]["why"] == "loss spike since step 1, open; do: stop; F02 x"
        journal.close()


class TestRefusals:
    @pytest.mark.parametrize(
        "path",
        [
            "/../../etc/passwd",
            "/run/../../../etc/passwd",
            "/run/%2e%2e/%2e%2e/etc/passwd",
            "/run/{id}/../../../../etc/passwd",
            "/run/{id}/incidents/0001-step-000600/postmortem.md",
            "/run/{id}/incident/1/../../../manifest.json",
            "/run/{id}/incident/..%2f..%2fmanifest.json",
            "/run/{id}",
            "/run/{id}/incident/-1",
            "/run/{id}/incident/1e3",
            "/run/000000000000/",
            "//evil.example/",
            "/trimtab/manifest.json",
            "/favicon.ico",
        ],
    )
    def test_nothing_but_the_pages_is_found(self, client: Client, path: str) -> None:
        status, text = client.get(path.format(id=client.id_of("bad")))
        assert status == 404
        assert text == "not found\n"

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_the_server_is_read_only(self, client: Client, method: str) -> None:
        assert client.get("/", method)[0] == 501

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost", ""])
    def test_a_foreign_host_header_is_refused(self, client: Client, host: str) -> None:
        assert client.get("/", Host=host)[0] == 403  # "localhost" is port 80
        assert client.get("/", Host=f"localhost:{client.port}")[0] == 200

    def test_other_origins_are_refused(self, client: Client) -> None:
        assert client.get("/", Origin="http://evil.example")[0] == 403
        assert client.get("/", Origin="null")[0] == 403
        own = f"127.0.0.1:{client.port}"
        assert client.get("/", Host=own, Origin=f"http://{own}")[0] == 200

    def test_other_sites_may_link_to_a_page_but_not_read_it(self, client: Client) -> None:
        page = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        assert client.get("/", **page, Sec_Fetch_Dest="document")[0] == 200
        assert client.get("/", **page, Sec_Fetch_Dest="iframe")[0] == 403
        assert client.get("/events", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
        assert client.headers["X-Frame-Options"] == "DENY"
        assert client.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in client.headers

    def test_a_token_is_needed_and_moves_into_a_cookie(self, runs: Path) -> None:
        for client in serving(runs, token="s3cret"):
            assert client.get("/")[0] == 401
            assert client.get("/events")[0] == 401
            assert client.get("/?token=wrong")[0] == 401
            assert client.get("/", Cookie="trimtab=wrong")[0] == 401
            assert client.get("/?token=s3cret")[0] == 303
            assert client.headers["Location"] == "/"
            cookie = client.headers["Set-Cookie"]
            assert "HttpOnly; SameSite=Strict" in cookie
            assert client.get("/", Cookie=cookie.split(";")[0])[0] == 200
            assert client.get("/", Authorization="Bearer s3cret")[0] == 200


def test_a_server_that_others_can_reach_has_a_token() -> None:
    assert Access.of("127.0.0.1", 80).token is None
    assert Access.of("::1", 80).token is None
    assert len(Access.of("0.0.0.0", 80).token or "") >= 32
    assert len(Access.of("training-box", 80).token or "") >= 32
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("127.0.0.1.evil.example")


def test_on_all_addresses_an_address_is_a_host_but_a_strange_name_is_not() -> None:
    access = Access.of("0.0.0.0", 8765)
    assert access.refuses({"Host": "10.1.2.3:8765"}) is None
    assert access.refuses({"Host": "[fe80::1]:8765"}) is None
    assert access.refuses({"Host": "evil.example:8765"}) is not None
    assert access.refuses({"Host": "10.1.2.3:999999x"}) is not None


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_it_listens_on_the_loopback_of_ipv6_too(runs: Path) -> None:
    hub = Hub([runs])
    try:
        server = RunServer("::1", 0, hub, diagnose, None)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert server.access.token is None
    assert server.access.refuses({"Host": f"[::1]:{server.access.port}"}) is None
    server.server_close()


def test_runs_are_found_in_folders_and_links_are_not_followed(tmp_path: Path) -> None:
    for name in ("a", "b/c", "d/e/f/g/h/i"):
        RunDirectory(tmp_path / name).write_manifest({})
    (tmp_path / "loop").symlink_to(tmp_path)
    assert sorted(name for name, _ in find_run_folders([tmp_path])) == ["a", "b/c"]
    assert [name for name, _ in find_run_folders([tmp_path / "a"])] == ["a"]
