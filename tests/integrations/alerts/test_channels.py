"""Messages reach real servers; whatever those do, a deadline holds and no secret is written."""

import socket
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest
from tests.kit.servers import Receiver, serving

from trimtab.core.errors import ConfigError
from trimtab.core.sink import Refused
from trimtab.integrations.alerts.alert import Alert, AlertLevel, AlertState
from trimtab.integrations.alerts.channels import Channel, read_channels
from trimtab.observe.shipping.transport import SECRETS, Reply

TOKEN = "T0K3N-xoxb-1234567890"


def an_alert(**changed: Any) -> Alert:
    values: dict[str, Any] = {
        "run": "x1",
        "matter": "incident-3",
        "state": AlertState.OPEN,
        "level": AlertLevel.ERROR,
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
        channel(f"webhook+{receiver.url}/a").send(an_alert(), 5)
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
        f"webhook+ftp://host/{TOKEN}",
        f"webhook+http:///{TOKEN}",
        f"https://hooks.slack.com/{TOKEN}",
        f"slack+https://hooks.slack.com/{TOKEN}",
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
        f"webhook+https://user:{TOKEN}@host/",
        f"pagerduty://{TOKEN}@API_KEY",
        f"pagerduty://INTEGRATION_KEY@{TOKEN}",
        f"discord://webhook-id/{TOKEN}",
        f"tgram://{TOKEN}/chat",
    ],
)
def test_parts_of_an_address_are_hidden_wherever_a_library_repeats_them(address: str) -> None:
    SECRETS.add(address)
    assert TOKEN not in SECRETS.hide(f"no host in {address!r}, path /{TOKEN}, {TOKEN}")


@pytest.mark.parametrize("filler", [0, 270, 285])
def test_a_server_that_echoes_a_request_reveals_no_secret(filler: int) -> None:
    """Neither the header of user and password, nor the half of it where an answer is cut."""
    password = "p/4ss+w0rd=="
    with serving(receiver := Receiver("echo")):
        host = receiver.url.removeprefix("http://")
        path = "x/" * (filler // 2)
        user = f"jane:{quote(password, safe='')}"
        address = f"webhook+http://{user}@{host}/{path}{TOKEN}?key=K3Y-9876"
        with pytest.raises(Refused) as raised:
            channel(address).send(an_alert(), 5)
    sent = receiver.headers[0]["Authorization"].removeprefix("Basic ")
    message = str(raised.value)
    assert "the server answers 400" in message
    for secret in (sent, password, TOKEN, "K3Y-9876"):
        assert secret[:8] not in message
