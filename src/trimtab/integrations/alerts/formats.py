"""The body of an alert for each service, as pure functions. Sources: the services' documents.

Text from a run is untrusted: it is escaped where a service has markup, and mentions are off.
"""

import hashlib
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any

from trimtab.core.jsonable import to_jsonable
from trimtab.integrations.alerts.alert import Alert, AlertState, Level

SLACK_CHARS, DISCORD_CHARS = 3000, 2000
PAGERDUTY_SUMMARY, PAGERDUTY_KEY = 1024, 255

_EMOJI = {Level.INFO: "white_check_mark", Level.WARNING: "warning", Level.ERROR: "rotating_light"}
_NTFY_PRIORITY = {Level.INFO: 2, Level.WARNING: 4, Level.ERROR: 5}


def webhook(alert: Alert) -> dict[str, Any]:
    """Everything, for a program of the user; `version` counts up if a field changes its meaning."""
    return {
        "version": 1,
        "key": alert.key,
        "state": alert.state.value,
        "level": alert.level.value,
        "title": alert.headline,
        "text": alert.text,
        "run": alert.run,
        "step": alert.step,
        "time": alert.clock,
        "facts": to_jsonable(alert.facts),
        "link": alert.link,
    }


def slack(alert: Alert) -> dict[str, Any]:
    """Slack and Mattermost: incoming webhooks cannot edit, so a change is a new message."""
    headline = _slack_escape(alert.headline)
    body = f":{_EMOJI[alert.level]}: *{headline}*\n{_slack_escape(alert.text)}"
    context = f"step {alert.step}, {alert.state.value}"
    if alert.link.startswith(("http://", "https://")):
        context += f", <{_slack_escape(alert.link).replace('|', '%7C')}|open the run>"
    return {
        "text": headline[:SLACK_CHARS],
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": body[:SLACK_CHARS]}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": context[:SLACK_CHARS]}]},
        ],
    }


def discord(alert: Alert) -> dict[str, Any]:
    """Discord; mentions are turned off, whatever the text contains."""
    lines = [f"**{alert.headline}** ({alert.state.value})", alert.text, alert.link]
    content = "\n".join(line for line in lines if line)
    return {"content": content[:DISCORD_CHARS], "allowed_mentions": {"parse": []}}


def ntfy(alert: Alert, topic: str) -> dict[str, Any]:
    """Ntfy, published as JSON to the root of the server."""
    value = {
        "topic": topic,
        "title": alert.headline[:250],
        "message": (alert.text or alert.title)[:4000],
        "priority": _NTFY_PRIORITY[alert.level],
        "tags": [_EMOJI[alert.level]],
    }
    if alert.link.startswith(("http://", "https://")):
        value["click"] = alert.link
    return value


def pagerduty(alert: Alert, routing_key: str) -> dict[str, Any]:
    """PagerDuty Events v2: one key per matter, so resends fold and closing resolves."""
    is_closed = alert.state is AlertState.CLOSED
    key = alert.key
    if len(key) > PAGERDUTY_KEY:
        key = f"trimtab/{hashlib.sha256(key.encode()).hexdigest()}"
    value: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if is_closed else "trigger",
        "dedup_key": key,
    }
    if not is_closed:
        value["payload"] = {
            "summary": alert.headline[:PAGERDUTY_SUMMARY],
            "source": alert.run,
            "severity": alert.level.value,
            "component": "training",
            "class": str(alert.facts.get("class", alert.matter)),
            "custom_details": {"text": alert.text, "step": alert.step} | to_jsonable(alert.facts),
        }
        if alert.link.startswith(("http://", "https://")):
            value["links"] = [{"href": alert.link, "text": "the run"}]
    return value


def mail(alert: Alert, sender: str, recipients: list[str]) -> EmailMessage:
    """An e-mail; all messages about one matter are one thread in the mailbox."""
    message = EmailMessage()
    message["Subject"] = " ".join(f"[trimtab] {alert.headline}".split())[:200]
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    message["Date"] = formatdate(alert.clock)
    # Made of the matter and its state, so that a message that is sent again is the same one.
    first = _message_id(alert, AlertState.OPEN)
    message["Message-ID"] = _message_id(alert, alert.state)
    if alert.state is not AlertState.OPEN:
        message["In-Reply-To"] = first
        message["References"] = first
    facts = "\n".join(f"{name}: {value}" for name, value in alert.facts.items())
    parts = [alert.headline, alert.text, f"step: {alert.step}\n{facts}".strip(), alert.link]
    message.set_content("\n\n".join(part for part in parts if part) + "\n")
    return message


def _message_id(alert: Alert, state: AlertState) -> str:
    changed = f"/{alert.step}" if state is AlertState.CHANGED else ""
    digest = hashlib.sha256(f"{alert.key}/{state.value}{changed}".encode()).hexdigest()
    return f"<{digest[:32]}@trimtab>"


def _slack_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
