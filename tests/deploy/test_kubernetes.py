"""The manifests as kustomize makes them: whole, consistent with the worker, and no wider open than they must be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.settings import Settings
from tests.deploy.test_compose import TOKEN_KEY_FILE

Manifest = dict[str, Any]
KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
REPOSITORY = KUBERNETES.parents[1]
LABELS = {"app.kubernetes.io/name": "agent-monitor"}
ANNOTATION_LIMIT = 262_144  # bytes: a client-side apply keeps the whole manifest in one


def built(folder: str) -> list[Manifest]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower()
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return built(".")


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (m for m in manifests if m["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def pod(manifests: list[Manifest]) -> Manifest:
    template: Manifest = one(manifests, "StatefulSet")["spec"]["template"]
    return template


@pytest.fixture(scope="module")
def container(pod: Manifest) -> Manifest:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def environment_file(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_what_there_is_and_that_names_are_not_taken_twice(manifests: list[Manifest]) -> None:
    kinds = Counter(m["kind"] for m in manifests)
    assert kinds.pop("ConfigMap") == 5
    assert kinds == dict.fromkeys(
        (
            *("StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"),
            *("ServiceMonitor", "PrometheusRule"),
        ),
        1,
    )
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    assert {m["kind"] for m in built("base")} == {
        *("StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap")
    }
    for manifest in manifests:
        assert manifest["metadata"]["labels"].items() >= LABELS.items()
        assert "namespace" not in manifest["metadata"]  # whoever applies it says where


def test_every_selector_finds_the_workers_and_nothing_else(
    manifests: list[Manifest], pod: Manifest
) -> None:
    """An empty selector would be every pod of the namespace."""
    selectors = [
        one(manifests, "StatefulSet")["spec"]["selector"]["matchLabels"],
        one(manifests, "Service")["spec"]["selector"],
        one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(c["labelSelector"]["matchLabels"] for c in pod["spec"]["topologySpreadConstraints"]),
    ]
    for selector in selectors:
        assert selector == LABELS
    assert pod["metadata"]["labels"].items() >= LABELS.items()
    monitor = one(manifests, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert one(manifests, "Service")["metadata"]["labels"].items() >= monitor.items()


def test_the_settings_are_valid_and_those_of_compose_are_all_thought_of(
    manifests: list[Manifest], container: Manifest, tmp_path: Path
) -> None:
    reference = container["envFrom"][0]["configMapRef"]["name"]
    (settings,) = (m["data"] for m in manifests if m["metadata"]["name"] == reference)
    assert settings == environment_file(KUBERNETES / "base/monitor.env")
    of_compose = environment_file(REPOSITORY / "deploy/monitor.env")
    # Where to start is the operator's choice in production; for a trial everything is new.
    assert settings.keys() == of_compose.keys() - {"MONITOR_START"}

    key = tmp_path / "token-key"
    key.write_text("0123456789abcdef" * 4)
    environ = {variable["name"]: "agent-monitor-0" for variable in container["env"]}
    loaded = Settings.load({**settings, **environ, TOKEN_KEY_FILE: str(key)})
    loaded.require_worker()
    assert loaded.instance == "agent-monitor-0"
    assert container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_no_secret_is_committed_and_the_one_that_is_needed_is_mounted_where_it_is_looked_for(
    manifests: list[Manifest], pod: Manifest, container: Manifest
) -> None:
    assert "Secret" not in {m["kind"] for m in manifests}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    secret = volumes["secrets"]["secret"]
    folder, name = environment_file(KUBERNETES / "base/monitor.env")[TOKEN_KEY_FILE].rsplit("/", 1)
    assert (mounts["secrets"]["mountPath"], mounts["secrets"]["readOnly"]) == (folder, True)
    said = (KUBERNETES / "kustomization.yaml").read_text()
    assert f"kubectl create secret generic {secret['secretName']} --from-literal={name}=" in said
    assert secret["defaultMode"] == 0o440


def test_probes_ports_and_scrapes_look_at_what_the_worker_shows(
    manifests: list[Manifest], container: Manifest
) -> None:
    (port,) = container["ports"]
    settings = environment_file(KUBERNETES / "base/monitor.env")
    assert (port["name"], str(port["containerPort"])) == ("http", settings["MONITOR_WEB_PORT"])
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    service = one(manifests, "Service")["spec"]
    assert (service["clusterIP"], service["ports"][0]["targetPort"]) == ("None", "http")
    stateful = one(manifests, "StatefulSet")["spec"]
    assert stateful["serviceName"] == one(manifests, "Service")["metadata"]["name"]
    assert stateful["podManagementPolicy"] == "Parallel"
    (endpoint,) = one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == service["ports"][0]["name"]
    # The operator's own label `service` would push ours aside.
    assert endpoint["honorLabels"] is True
    assert {"action": "labeldrop", "regex": "service"} in endpoint["relabelings"]
    (ingress,) = one(manifests, "NetworkPolicy")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": "http"}]
    assert ingress["from"]


def test_kafka_and_alertmanager_are_let_out_to(manifests: list[Manifest]) -> None:
    settings = environment_file(KUBERNETES / "base/monitor.env")
    needed = [
        int(settings[name].rsplit(":", 1)[1])
        for name in ("MONITOR_BOOTSTRAP_SERVERS", "MONITOR_ALERTMANAGER_URLS")
    ]
    allowed = [
        range(port["port"], port.get("endPort", port["port"]) + 1)
        for rule in one(manifests, "NetworkPolicy")["spec"]["egress"]
        for port in rule["ports"]
        if port["protocol"] == "TCP"
    ]
    for port in needed:
        assert any(port in ports for ports in allowed), port


def test_a_worker_is_given_nothing_that_it_does_not_need(
    pod: Manifest, container: Manifest
) -> None:
    """Kubernetes' restricted pod security standard, and a root that cannot be written."""
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert {"memory"} <= container["resources"]["limits"].keys()
    user = f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    assert user in (REPOSITORY / "deploy/Dockerfile").read_text().splitlines()
    compose = yaml.safe_load((REPOSITORY / "deploy/compose.yaml").read_text())["services"]["worker"]
    assert compose["image"] == container["image"]
    assert compose["stop_grace_period"] == f"{spec['terminationGracePeriodSeconds']}s"


def test_every_dashboard_is_a_configmap_that_the_sidecar_finds(manifests: list[Manifest]) -> None:
    found = {}
    for manifest in manifests:
        if manifest["metadata"]["labels"].get("grafana_dashboard") == "1":
            found.update(manifest["data"])
            assert len(json.dumps(manifest)) < ANNOTATION_LIMIT
    files = {
        path.name: path.read_text() for path in (REPOSITORY / "dashboards/json").glob("*.json")
    }
    assert found == files


def test_the_prometheus_rule_is_what_the_rules_say(manifests: list[Manifest]) -> None:
    done = subprocess.run(
        [sys.executable, KUBERNETES / "build.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    groups = one(manifests, "PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert "AgentMonitorDown" in alerts
