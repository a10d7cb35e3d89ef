"""The example configuration of Alertmanager: whom an alert reaches, what mutes what, and what is written."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from monitor.alerting.alert import Alert
from monitor.alerting.alertmanager import wall_clock
from monitor.alerting.content import ALERT_NAMES
from monitor.stack import Alertmanager
from monitor.stack.process import free_ports
from tests.alerting.test_alertmanager import delivering, until
from tests.alerting.test_board import hostile_alert

HERE = Path(__file__).parents[2] / "deploy/alertmanager"
CONFIG = HERE / "alertmanager.yml"
TEMPLATES = HERE / "templates/agent-monitor.tmpl"
RULES = HERE.parent / "prometheus/rules"
IDENTITY = ("AgentMonitorIdentityRejects", "AgentMonitorIdentityBroken")
HOSTILE = "<!channel> <b>&\"'{{ .Labels }}\n[x](http://evil)"


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    return loaded


@pytest.fixture(scope="module")
def severities() -> dict[str, str]:
    """Every alert of Prometheus' rules."""
    return {
        rule["alert"]: rule["labels"]["severity"]
        for path in RULES.glob("*.yml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


@pytest.mark.parametrize("name", ["alertmanager.yml", "local.yml"])
def test_amtool_accepts_it(require_binary: Callable[[str], Path], name: str) -> None:
    done = subprocess.run(
        [require_binary("amtool"), "check-config", HERE / name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_starts_the_one_that_reaches_nobody() -> None:
    compose = yaml.safe_load((HERE.parent / "compose.yaml").read_text())
    command = compose["services"]["alertmanager"]["command"]
    assert "--config.file=/etc/alertmanager/local.yml" in command
    assert yaml.safe_load((HERE / "local.yml").read_text())["receivers"] == [{"name": "nobody"}]


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"alertname": "AgentMonitorHeartbeat", "severity": "info"}, "heartbeat"),
        ({"alertname": "AgentMonitorSpanOverThreshold", "severity": "critical"}, "page"),
        ({"alertname": "AgentMonitorPolicyMatched", "severity": "warning"}, "ticket"),
        ({"alertname": "AgentMonitorCardinalityShift", "severity": "info"}, "channel"),
        ({"alertname": "AgentMonitorDown", "severity": "critical"}, "page"),
        ({"alertname": "AgentMonitorIncident", "severity": "urgent"}, "page"),
        ({"alertname": "AgentMonitorIncident"}, "page"),
        ({"alertname": "AgentMonitorDrift", "severity": "critical", "service": "a b\"'"}, "page"),
    ],
)
def test_whom_an_alert_reaches(
    require_binary: Callable[[str], Path], labels: dict[str, str], receiver: str
) -> None:
    pairs = [f"{name}={json.dumps(value)}" for name, value in labels.items()]
    done = subprocess.run(
        [
            *(require_binary("amtool"), "config", "routes", "test"),
            *(f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *pairs),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_rules_name_only_alerts_that_there_are(
    config: dict[str, Any], severities: dict[str, str]
) -> None:
    known = {*severities, *ALERT_NAMES}
    matchers = [
        matcher
        for rule in config["inhibit_rules"]
        for side in ("source_matchers", "target_matchers")
        for matcher in rule[side]
    ] + [m for route in config["route"]["routes"] for m in route["matchers"]]
    named = [m.split("=", 1)[1].lstrip("~").strip('"') for m in matchers if "alertname" in m]
    assert named
    for pattern in named:
        prefix, _, inner = pattern.rstrip(")").partition("(")
        for name in inner.split("|"):
            assert prefix + name in known


# --- a real one --------------------------------------------------------------------------------------------


class Capture:
    """What the integrations would send to PagerDuty, Slack and the webhook: (path, body)."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.port = free_ports(1)[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, path: str) -> list[dict[str, Any]]:
        return [body for at, body in self.got if at == path]

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((request.path, await request.json()))
        return web.json_response({"status": "success", "ok": True}, status=202)


@asynccontextmanager
async def captured(config: dict[str, Any], folder: Path) -> AsyncIterator[tuple[str, Capture]]:
    """The example's Alertmanager, without its waits, its integrations led to us."""
    capture = Capture()
    app = web.Application()
    app.router.add_post("/{path:.*}", capture.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", capture.port).start()
    server = Alertmanager(folder / "alertmanager", config=example(config, capture.url, folder))
    try:
        await asyncio.to_thread(server.start)
        yield server.url, capture
    finally:
        await asyncio.to_thread(server.close)
        await runner.cleanup()


def example(config: dict[str, Any], url: str, folder: Path) -> str:
    text = json.dumps(config)
    for name, secret in (("slack-url", f"{url}/slack"), ("pagerduty-routing-key", "k" * 32)):
        (folder / name).write_text(secret)
        text = text.replace(f"/etc/alertmanager/secrets/{name}", str(folder / name))
    text = re.sub(r'"group_wait": "\w+"', '"group_wait": "0s"', text)
    text = re.sub(r'"group_interval": "\w+"', '"group_interval": "1s"', text)
    text = text.replace("templates/*.tmpl", str(TEMPLATES))
    text = text.replace("https://dead-mans-switch.example.com/agent-monitor", f"{url}/hook")
    made = json.loads(text)
    for receiver in made["receivers"]:
        receiver.pop("email_configs", None)  # its text is rendered by amtool below
        for pager in receiver.get("pagerduty_configs", ()):
            pager["url"] = f"{url}/pagerduty"
    return json.dumps(made)


def alert(name: str, severity: str, **labels: str) -> Alert:
    annotations = {"summary": f"{name} {HOSTILE}", "description": HOSTILE}
    return Alert(
        {"alertname": name, "severity": severity, **labels}, annotations, wall_clock() - 1000
    )


async def muted(url: str, count: int) -> dict[str, bool]:
    """Whether each alert that it holds is inhibited, once it holds `count`."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/api/v2/alerts") as got:
                held = await got.json()
            if len(held) == count and all(a["status"]["state"] != "unprocessed" for a in held):
                return {
                    a["labels"]["alertname"] + "/" + a["labels"]["severity"]: bool(
                        a["status"]["inhibitedBy"]
                    )
                    for a in held
                }
            await asyncio.sleep(0.1)
    raise AssertionError(held)


async def inhibited(url: str, count: int, expected: set[str]) -> set[str]:
    """Alertmanager marks an alert a moment after it has taken it: what is muted, waited for up to 15 s."""
    found: set[str] = set()
    for _ in range(75):
        found = {name for name, silent in (await muted(url, count)).items() if silent}
        if found == expected:
            break
        await asyncio.sleep(0.2)
    return found


async def test_what_mutes_what(
    config: dict[str, Any],
    severities: dict[str, str],
    tmp_path: Path,
    require_binary: Callable[[str], Path],
) -> None:
    """Everything fires at once: a monitor that is down mutes its symptoms, and no incident is muted by another alert."""
    require_binary("alertmanager")
    of = {"service": "shop", "topic": "agent-spans", "env": "eu"}
    alerts = [alert(name, severity, **of) for name, severity in severities.items()]
    alerts += [alert(name, "critical", **of) for name in ALERT_NAMES]
    alerts.append(alert("AgentMonitorSpanOverThreshold", "warning", **of))
    symptoms = {"Stalled", "NoInput", "Lag", "TransactionsFailing", "TickHold", "SettingsOutranked"}
    symptoms |= {"DeliveryFailing", "DriftTicket"}
    expected = {f"AgentMonitor{name}/{severities['AgentMonitor' + name]}" for name in symptoms}
    expected.add("AgentMonitorSpanOverThreshold/warning")
    async with captured(config, tmp_path) as (url, _), delivering([url], alerts):
        assert await inhibited(url, len(alerts), expected) == expected


async def test_identity_rejects_and_another_environments_trouble_mute_nothing(
    config: dict[str, Any], tmp_path: Path, require_binary: Callable[[str], Path]
) -> None:
    require_binary("alertmanager")
    of = {"service": "shop", "env": "eu"}
    alerts = [
        *(alert(name, "critical", **of) for name in IDENTITY),
        *(alert(name, "warning", **of) for name in ALERT_NAMES),
        alert("AgentMonitorDrift", "warning", **of),
        alert("AgentMonitorDown", "critical", env="us"),
        alert("AgentMonitorLag", "critical", env="eu"),
    ]
    expected = {"AgentMonitorIdentityBroken/warning"}  # by its own, higher one
    async with captured(config, tmp_path) as (url, _), delivering([url], alerts):
        assert await inhibited(url, len(alerts), expected) == expected


async def test_what_pagerduty_slack_and_the_webhook_are_sent(
    config: dict[str, Any], tmp_path: Path, require_binary: Callable[[str], Path]
) -> None:
    """A page with hostile names, and one of Prometheus' alerts whose labels nobody has cleaned."""
    require_binary("alertmanager")
    page = hostile_alert(HOSTILE, "{{ template }}", "x" * 10_240, "4bf92f3577b34da6")
    ticket = alert("AgentMonitorIncidentRate", "warning", service=HOSTILE)
    beat = alert("AgentMonitorHeartbeat", "info")
    async with (
        captured(config, tmp_path) as (url, capture),
        delivering([url], [page, ticket, beat]),
    ):
        await until(
            lambda: (
                capture.of("/pagerduty") and len(capture.of("/slack")) == 2 and capture.of("/hook")
            )
        )
    (event,) = capture.of("/pagerduty")
    assert event["payload"]["severity"] == "critical"
    assert event["payload"]["summary"].startswith("[FIRING critical] ‹!channel›")
    details = event["payload"]["custom_details"]["firing"]
    for name in ("trace_id", "score", "argmax_role", "neighbourhood", "explain", "runbook_url"):
        assert page.annotations[name] in details
    assert event["links"][0]["href"] == page.annotations["runbook_url"]
    assert event["client_url"] == page.annotations["dashboard"]

    texts = {s["attachments"][0]["color"]: s["attachments"][0] for s in capture.of("/slack")}
    assert texts.keys() == {"danger", "warning"}
    for shown in texts.values():
        links = re.findall(r"<([^|>]*)\|(Dashboard|Runbook)>", shown["text"])
        bare = re.sub(r"<[^|>]*\|(Dashboard|Runbook)>", "", shown["title"] + shown["text"])
        assert "<" not in bare, bare  # no mention, no link but ours
        assert all(link.startswith("https://") for link, _ in links)
    assert page.annotations["explain"] in texts["danger"]["text"]
    assert "&lt;!channel&gt;" in texts["warning"]["text"]
    assert "{{ .Labels }}" in texts["warning"]["text"]  # as text: nothing evaluates it

    assert capture.of("/hook")[0]["alerts"][0]["labels"]["alertname"] == "AgentMonitorHeartbeat"


def test_what_the_e_mail_says(tmp_path: Path, require_binary: Callable[[str], Path]) -> None:
    page = hostile_alert("shop", "p", "guard", "4bf92f3577b34da6")
    raw = {"summary": HOSTILE, "description": HOSTILE, "runbook_url": "javascript:alert(1)"}
    data = {
        "status": "firing",
        "alerts": [
            {"status": "firing", "labels": a.labels, "annotations": a.annotations}
            for a in (page, Alert(page.labels, raw, 0))
        ],
        "commonLabels": page.labels,
        "commonAnnotations": page.annotations,
    }
    (tmp_path / "data.json").write_text(json.dumps(data))
    done = subprocess.run(
        [
            *(require_binary("amtool"), "template", "render", f"--template.glob={TEMPLATES}"),
            *('--template.text={{ template "agentmonitor.email.html" . }}', "--template.type=html"),
            f"--template.data={tmp_path / 'data.json'}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4bf92f3577b34da6" in done.stdout
    assert "<!channel>" not in done.stdout
    assert "<b>&" not in done.stdout
    assert "javascript:" not in done.stdout
