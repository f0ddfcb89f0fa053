"""Messages reach real servers; whatever those do, a deadline holds and no secret is written."""

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from tests.kit.servers import Receiver, serving

from trimtab.core.errors import ConfigError
from trimtab.core.sink import Refused
from trimtab.integrations.alerts.alert import Alert, AlertState, Level
from trimtab.integrations.alerts.channels import Channel, read_channels
from trimtab.integrations.transport.http import Reply
from trimtab.integrations.transport.secrets import SECRETS

TOKEN = "T0K3N-xoxb-1234567890"


def an_alert(**changed: Any) -> Alert:
    values: dict[str, Any] = {
        "run": "x1",
        "matter": "incident-3",
        "state": AlertState.OPEN,
        "level": Level.ERROR,
        "title": "incident 3: loss spike at step 900",
        "text": "Class: divergent.",
        "step": 912,
        "clock": 1.7e9,
        "facts": {"class": "divergent"},
        "link": "https://tracker/run",
    }
    return Alert(**(values | changed))


def channel(address: str) -> Channel:
    (made,) = read_channels({"TRIMTAB_ALERT_URLS": address})
    return made


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def post(address: str, alert: Alert) -> tuple[str, Any]:
    """What a service gets of an alert."""
    with serving(receiver := Receiver()):
        host = receiver.url.removeprefix("http://")
        channel(address.replace("HOST", host)).send(alert, 5)
    (posted,) = receiver.posted
    return posted


def test_a_webhook_gets_everything() -> None:
    path, body = post(f"webhook+http://HOST/{TOKEN}", an_alert())
    assert path == f"/{TOKEN}"
    assert body == {
        "version": 1,
        "key": "trimtab/x1/incident-3",
        "state": "open",
        "level": "error",
        "title": "x1: incident 3: loss spike at step 900",
        "text": "Class: divergent.",
        "run": "x1",
        "step": 912,
        "time": 1.7e9,
        "facts": {"class": "divergent"},
        "link": "https://tracker/run",
    }


def test_slack_gets_no_markup_from_the_run() -> None:
    alert = an_alert(title="<!channel> & <https://evil|click>", text="x" * 5000)
    _, body = post("slack+http://HOST/services/a", alert)
    text = body["blocks"][0]["text"]["text"]
    assert "&lt;!channel&gt; &amp; &lt;https://evil|click&gt;" in text
    assert len(text) == 3000
    assert "<https://tracker/run|open the run>" in body["blocks"][1]["elements"][0]["text"]


def test_discord_mentions_nobody() -> None:
    _, body = post("discord+http://HOST/api/webhooks/a", an_alert(text="@everyone" * 500))
    assert len(body["content"]) == 2000
    assert body["allowed_mentions"] == {"parse": []}


def test_ntfy_gets_topic_priority_and_link() -> None:
    path, body = post("ntfy+http://HOST/my-topic", an_alert())
    assert path == "/"
    assert body["topic"] == "my-topic"
    assert body["priority"] == 5
    assert body["click"] == "https://tracker/run"


def test_pagerduty_folds_by_key_and_resolves() -> None:
    path, body = post(f"pagerduty+http://{TOKEN}@HOST", an_alert())
    assert path == "/v2/enqueue"
    assert body["routing_key"] == TOKEN
    assert body["event_action"] == "trigger"
    assert body["payload"]["severity"] == "error"
    _, closed = post(f"pagerduty+http://{TOKEN}@HOST", an_alert(state=AlertState.CLOSED))
    assert closed["event_action"] == "resolve"
    assert closed["dedup_key"] == body["dedup_key"] == "trimtab/x1/incident-3"
    _, long = post(f"pagerduty+http://{TOKEN}@HOST", an_alert(run="r" * 300))
    assert len(long["dedup_key"]) <= 255


@pytest.mark.parametrize("behaviour", ["silent", "dripping", "dripping header"])
def test_a_server_that_never_completes_its_answer_costs_the_deadline(behaviour: str) -> None:
    with serving(receiver := Receiver(behaviour)):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.7 s"):
            channel(f"webhook+{receiver.url}/a").send(an_alert(), 0.7)
        assert time.monotonic() - began < 3
        # The connection is shut down, so no thread is left with it.
        end = time.monotonic() + 5
        while any(t.name == "trimtab-request" for t in threading.enumerate()):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_full_backlog_and_a_dead_server_cost_the_deadline_at_most() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            began = time.monotonic()
            with pytest.raises(OSError):
                channel(f"webhook+http://127.0.0.1:{port}/a").send(an_alert(), 0.7)
            assert time.monotonic() - began < 3
    with pytest.raises(OSError):
        channel(f"webhook+http://127.0.0.1:{port}/a").send(an_alert(), 0.7)


def test_an_error_of_the_server_can_be_tried_again_and_a_bad_message_cannot() -> None:
    with serving(receiver := Receiver("500")), pytest.raises(ConnectionError, match="500"):
        channel(f"slack+{receiver.url}/a").send(an_alert(), 5)
    with pytest.raises(Refused):
        Reply(status=400, body=b"invalid_blocks").require_success()


def test_a_redirect_is_not_followed() -> None:
    with serving(elsewhere := Receiver()), serving(receiver := Receiver("redirect")):
        receiver.elsewhere = f"{elsewhere.url}/steal"
        with pytest.raises(ConnectionError, match="redirects are not followed"):
            channel(f"webhook+{receiver.url}/{TOKEN}").send(an_alert(), 5)
    assert len(receiver.posted) == 1
    assert not elsewhere.posted


@pytest.mark.parametrize(
    "address",
    [
        f"telegram://{TOKEN}",
        f"slack+ftp://host/{TOKEN}",
        f"webhook+http:///{TOKEN}",
        f"ntfy+https://{TOKEN}",
        f"smtp://user:{TOKEN}@host/",
        f"command:/does/not/exist/{TOKEN}",
        f"https://hooks.slack.com/{TOKEN}",
    ],
)
def test_a_wrong_address_is_an_error_without_the_address(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        channel(address).send(an_alert(), 1)
    assert TOKEN not in str(caught.value)


def test_no_addresses_are_a_usage_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="TRIMTAB_ALERT_URLS"):
        read_channels({})


@pytest.mark.parametrize(
    "address",
    [
        f"webhook+https://host/{TOKEN}",
        f"webhook+https://host/x?key={TOKEN}",
        f"slack+https://user:{TOKEN}@host/",
        f"pagerduty://{TOKEN}",
        f"pagerduty://{TOKEN}@host",
        f"apprise-like+https://host/{TOKEN}",
    ],
)
def test_parts_of_an_address_are_hidden_wherever_a_library_repeats_them(address: str) -> None:
    SECRETS.add(address)
    assert TOKEN not in SECRETS.hide(f"no host in {address!r}, path /{TOKEN}, {TOKEN}")


def test_a_command_gets_the_alert_as_input_and_no_shell(tmp_path: Path) -> None:
    program, out = tmp_path / "page me; touch pwned", tmp_path / "out.json"
    program.write_text(f"#!/bin/sh\ncat > {out}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    from trimtab.integrations.alerts.local_channels import CommandChannel

    CommandChannel(str(program)).send(an_alert(title="$(touch pwned); `id`"), 20)
    assert json.loads(out.read_text())["title"] == "x1: $(touch pwned); `id`"
    assert not (tmp_path / "pwned").exists()


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program, pid = tmp_path / "hang", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {pid}\nwait\n")
    program.chmod(0o755)
    with pytest.raises(TimeoutError):
        channel(f"command:{program}").send(an_alert(), 1.5)
    end = time.monotonic() + 5
    while Path(f"/proc/{pid.read_text().strip()}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "fail"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises((ConnectionError, BrokenPipeError)):
        channel(f"command:{program}").send(an_alert(), 20)


@contextmanager
def mail_server(drip: bool = False) -> Iterator[tuple[int, list[EmailMessage]]]:
    """A small SMTP server without TLS; the messages that it got."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[EmailMessage] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                if drip:
                    try:
                        for _ in range(200):
                            connection.sendall(b"2")
                            time.sleep(0.1)
                    except OSError:
                        continue
                connection.sendall(b"220 ready\r\n")
                data: list[bytes] | None = None
                for line in lines:
                    if data is not None:
                        if line == b".\r\n":
                            message = message_from_bytes(b"".join(data), policy=policy.default)
                            assert isinstance(message, EmailMessage)
                            got.append(message)
                            data = None
                            connection.sendall(b"250 taken\r\n")
                        else:
                            data.append(line)
                    elif line.upper().startswith(b"DATA"):
                        data = []
                        connection.sendall(b"354 go on\r\n")
                    elif line.upper().startswith(b"QUIT"):
                        connection.sendall(b"221 bye\r\n")
                        break
                    else:
                        connection.sendall(b"250 ok\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1], got
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_mails_about_one_matter_are_one_thread() -> None:
    with mail_server() as (port, got):
        mail = channel(f"smtp://127.0.0.1:{port}/?from=trimtab@x.org&to=a@x.org,b@x.org")
        mail.send(an_alert(title="spike\r\nBcc: evil@x.org"), 5)
        mail.send(an_alert(state=AlertState.CHANGED), 5)
        mail.send(an_alert(state=AlertState.CLOSED), 5)
        mail.send(an_alert(state=AlertState.CLOSED), 5)
    opened, changed, closed, again = got
    assert opened["Subject"] == "[trimtab] x1: spike Bcc: evil@x.org"
    assert opened["Bcc"] is None
    assert opened["To"] == "a@x.org, b@x.org"
    assert changed["References"] == closed["References"] == opened["Message-ID"]
    assert len({opened["Message-ID"], changed["Message-ID"], closed["Message-ID"]}) == 3
    assert again["Message-ID"] == closed["Message-ID"]
    assert "Class: divergent." in opened.get_content()


def test_a_password_is_not_sent_to_a_mail_server_without_tls() -> None:
    with mail_server() as (port, got):
        mail = channel(f"smtp://ada:{TOKEN}@127.0.0.1:{port}/?to=a@x.org")
        with pytest.raises(ConnectionError, match="offers no TLS"):
            mail.send(an_alert(), 5)
    assert not got


def test_a_mail_server_that_drips_costs_the_deadline() -> None:
    with mail_server(drip=True) as (port, _):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            channel(f"smtp://127.0.0.1:{port}/?to=a@x.org").send(an_alert(), 0.7)
        assert time.monotonic() - began < 3


def test_the_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_ALERT_URLS", "ntfy+https://a/b\n slack+https://c/d ")
    assert [made.kind for made in read_channels(os.environ)] == ["ntfy", "slack"]
