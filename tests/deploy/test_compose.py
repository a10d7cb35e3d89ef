"""deploy/ cannot be started without Docker. What can be checked without it is."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from jsonschema import Draft7Validator

from monitor.settings import Settings
from monitor.stack.kafka import SINGLE_NODE

TOKEN_KEY_FILE = "MONITOR_TOKEN_KEY_FILE"


@pytest.fixture(scope="module")
def deploy(repository: Path) -> Path:
    return repository / "deploy"


@pytest.fixture(scope="module")
def compose(deploy: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((deploy / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def environment(deploy: Path) -> dict[str, str]:
    lines = (deploy / "monitor.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def checked(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"


def test_compose_file_obeys_the_compose_specification(compose: dict[str, Any]) -> None:
    schema = json.loads(Path(__file__).with_name("compose-spec.schema.json").read_text())
    errors = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft7Validator(schema).iter_errors(compose)
    ]
    assert not errors


def test_every_volume_dependency_and_file_of_the_compose_file_exists(
    compose: dict[str, Any], deploy: Path
) -> None:
    services = compose["services"]
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (deploy / source).is_dir(), f"{name} mounts {source}, which is not there"
            else:
                assert source in compose["volumes"], f"{name} mounts an undeclared volume {source}"
        assert set(service.get("depends_on", ())) <= services.keys()
        if "build" in service:
            context = deploy / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
        if "env_file" in service:
            assert (deploy / service["env_file"]).is_file()


def test_nothing_is_published_beyond_this_machine(compose: dict[str, Any]) -> None:
    published = [
        port for service in compose["services"].values() for port in service.get("ports", [])
    ]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_compose_broker_is_the_one_that_the_tests_run(
    compose: dict[str, Any], deploy: Path
) -> None:
    pom = ElementTree.parse(deploy / "kafka" / "pom.xml")
    version = pom.findtext(".//{*}kafka.version")
    images = {
        service["image"]
        for service in compose["services"].values()
        if service["image"].startswith("apache/kafka:")
    }
    assert images == {f"apache/kafka:{version}"}

    set_there = compose["services"]["kafka"]["environment"]
    # The image turns KAFKA_A_B into the property a.b.
    wanted = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in SINGLE_NODE.items()}
    assert {name: set_there.get(name) for name in wanted} == wanted


def test_the_env_file_holds_only_valid_settings(
    environment: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "token-key"
    key.write_text("0123456789abcdef" * 4)
    assert TOKEN_KEY_FILE in environment  # a worker without it refuses to start
    settings = Settings.load({**environment, TOKEN_KEY_FILE: str(key)})
    settings.require_worker()
    assert {name for name in environment if not name.startswith("MONITOR_")} == set()


def test_the_env_file_names_what_the_compose_file_runs(
    compose: dict[str, Any], environment: dict[str, str], deploy: Path
) -> None:
    services = compose["services"]
    broker, port = environment["MONITOR_BOOTSTRAP_SERVERS"].split(":")
    assert (
        f"PLAINTEXT://{broker}:{port}"
        in services[broker]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    )
    assert (
        environment["MONITOR_ALERTMANAGER_URLS"].removeprefix("http://").split(":")[0] in services
    )

    inputs = {item.split("=")[0] for item in environment["MONITOR_INPUTS"].split(",")}
    made = re.search(r"for topic in (.*); do", services["input-topics"]["command"][-1])
    assert made is not None
    assert set(made[1].split()) == inputs

    folder = str(Path(environment[TOKEN_KEY_FILE]).parent)
    for name in ("token-key", "worker"):
        assert any(volume.split(":")[1] == folder for volume in services[name]["volumes"])
    assert environment[TOKEN_KEY_FILE] in services["token-key"]["entrypoint"][-1]

    # Both the image's health check and Prometheus look at the worker's port.
    port = environment["MONITOR_WEB_PORT"]
    assert f"127.0.0.1:{port}/readyz" in (deploy / "Dockerfile").read_text()
    prometheus = yaml.safe_load((deploy / "prometheus" / "prometheus.yml").read_text())
    [worker] = prometheus["scrape_configs"][0]["dns_sd_configs"]
    assert (worker["names"], str(worker["port"])) == (["worker"], port)


def test_the_token_key_is_made_once(compose: dict[str, Any], tmp_path: Path) -> None:
    [_python, flag, code] = compose["services"]["token-key"]["entrypoint"]
    assert flag == "-c"
    key = tmp_path / "token-key"
    code = code.replace("/var/lib/monitor/token-key", str(key))
    checked("python3", "-c", code)
    first = key.read_text()
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert key.stat().st_mode & 0o777 == 0o600
    checked("python3", "-c", code)
    assert key.read_text() == first


def test_prometheus_configuration_and_its_rules(
    deploy: Path, require_binary: Callable[[str], Path]
) -> None:
    checked(require_binary("promtool"), "check", "config", deploy / "prometheus" / "prometheus.yml")


def test_grafana_finds_its_datasource_and_dashboards(compose: dict[str, Any], deploy: Path) -> None:
    provisioning = deploy / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())[
        "providers"
    ]
    mounts = dict(volume.split(":")[1::-1] for volume in compose["services"]["grafana"]["volumes"])
    dashboards = deploy / mounts[provider["options"]["path"]]
    assert list(dashboards.glob("*.json"))
