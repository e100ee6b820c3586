"""The manifests under k8s/: rendered by kubectl, held against schemas, settings and commands."""

import copy
import fnmatch
import functools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.common.settings import Settings
from tests.deploy import checks
from tests.deploy.kustomize import (
    ALL,
    ANOTHER_POOL,
    K8S,
    KEDA,
    OVERLAYS,
    ROOT,
    Object,
    copy_of_k8s,
    of_the_page,
    render,
)

REAPER, WORKER = "Deployment/nightshift-reaper", "Deployment/nightshift-worker"
POD = ("spec", "template", "spec")
MAIN = (*POD, "containers", 0)
RULE = ("spec", "rules", 0)

Rendered = Callable[[str], list[Object]]


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The objects of an overlay, a copy of one's own each time."""
    folder = copy_of_k8s(tmp_path_factory.mktemp("kustomize")) / "overlays"
    once = functools.cache(lambda overlay: render(folder / overlay))
    return lambda overlay: copy.deepcopy(once(overlay))


@pytest.mark.parametrize("overlay", [*OVERLAYS, ALL, *of_the_page()])
def test_an_overlay_passes_every_check(rendered: Rendered, overlay: str) -> None:
    faults = {check.__name__: list(check(rendered(overlay))) for check in checks.CHECKS}
    assert len(faults) == len(checks.CHECKS)
    if "hostPath" in of_the_page().get(overlay, ""):  # the page says so there
        is_open = faults.pop(checks.is_restricted.__name__)
        assert len(is_open) == 2
        assert "hostPath" in is_open[0]
        assert "enforce" in is_open[1]
    assert {name: said for name, said in faults.items() if said} == {}


def test_a_table_of_models_can_be_used_and_the_page_has_one(
    rendered: Rendered, tmp_path: Path
) -> None:
    from nightshift.producer.serve import model_table

    found = set()
    for overlay in [ALL, *of_the_page()]:
        for thing in checks.of_kind(rendered(overlay), "ConfigMap"):
            if thing["metadata"]["name"].startswith("nightshift-models"):
                table = tmp_path / "models.yaml"
                table.write_text(thing["data"]["models.yaml"])
                found.add(tuple(model_table.load(table).models))
    assert found == {(), ("small",)}


def test_a_patch_of_the_page_does_something(rendered: Rendered) -> None:
    for name in of_the_page().keys() - {"mine", KEDA}:
        base = "mine" if name.startswith("mine") else KEDA
        assert rendered(name) != rendered(base), name
    assert rendered("mine") != rendered(KEDA)


# Each check finds what it is for: (check, overlay, object, where, value, what it says). A value of
# None takes the key away.
ROOT_USER = {"runAsNonRoot": False, "seccompProfile": {"type": "RuntimeDefault"}}
HUNDRED = {
    "exec": {"command": ["nightshift-worker", "started"]},
    "failureThreshold": 10,
    "periodSeconds": 10,
}
FAULTS: list[tuple[Any, str, str, tuple[Any, ...], Any, str]] = [
    (checks.fits_its_schema, "gpu", WORKER, ("spec", "replica"), 2, "replica"),
    (checks.fits_its_schema, "gpu", REAPER, (*MAIN, "resources", "limits", "memory"), [], "memory"),
    (checks.fits_its_schema, "gpu", REAPER, ("kind",), "Deploymint", "schema"),
    (checks.fits_its_schema, "keda", "ScaledObject/nightshift-worker", ("spec", "maxReplicas"), 2, "maxReplicas"),
    (checks.fits_its_schema, "keda", "ScaledObject/nightshift-worker", ("spec", "fallback", "behavior"), "stay", "stay"),
    (checks.fits_its_schema, "keda", "TriggerAuthentication/nightshift-keda", ("spec", "secret"), [], "secret"),
    (checks.fits_its_schema, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "interval"), "30 s", "interval"),
    (checks.is_restricted, "gpu", WORKER, (*POD, "securityContext"), ROOT_USER, "root"),
    (checks.is_restricted, "gpu", WORKER, (*POD, "securityContext", "seccompProfile"), None, "seccomp"),
    (checks.is_restricted, "gpu", WORKER, (*POD, "volumes", 0), {"name": "x", "hostPath": {"path": "/"}}, "hostPath"),
    (checks.is_restricted, "gpu", REAPER, (*MAIN, "securityContext", "allowPrivilegeEscalation"), None, "privileges"),
    (checks.is_restricted, "gpu", REAPER, (*MAIN, "securityContext", "capabilities"), None, "capabilities"),
    (checks.is_restricted, "gpu", REAPER, (*MAIN, "securityContext", "capabilities", "add"), ["SYS_ADMIN"], "adds"),
    (checks.is_restricted, "gpu", REAPER, (*MAIN, "ports"), [{"hostPort": 1}], "host port"),
    (checks.is_restricted, "gpu", REAPER, (*POD, "hostNetwork"), True, "hostNetwork"),
    (checks.is_restricted, "gpu", "Namespace/nightshift", ("metadata", "labels"), {}, "enforce"),
    (checks.is_shut, "cpu-demo", "StatefulSet/nightshift-postgres", (*MAIN, "securityContext", "readOnlyRootFilesystem"), None, "written"),
    (checks.is_shut, "gpu", WORKER, (*POD, "automountServiceAccountToken"), None, "token"),
    (checks.is_shut, "gpu", WORKER, (*POD, "enableServiceLinks"), None, "services"),
    (checks.is_shut, "gpu", "ServiceAccount/nightshift-worker", ("kind",), "Role", "rights"),
    (checks.sets_what_is_read, "gpu", WORKER, (*MAIN, "env", 1, "name"), "NIGHTSHIFT_DATABASE", "NIGHTSHIFT_DATABASE"),
    (checks.sets_what_is_read, "gpu", WORKER, (*MAIN, "args"), [], "POOL"),
    (checks.sets_what_is_read, "gpu", WORKER, (*MAIN, "env", 1, "valueFrom", "secretKeyRef", "key"), "url", "key url"),
    (checks.sets_what_is_read, "gpu", "ConfigMap/nightshift-settings", ("data", "NIGHTSHIFT_DRAIN"), "3", "NIGHTSHIFT_DRAIN"),
    (checks.sets_what_is_read, "gpu", "ConfigMap/nightshift-settings", ("data", "NIGHTSHIFT_DRAIN_SECONDS"), "long", "drain_seconds"),
    (checks.sets_what_is_read, "cpu-demo", "Secret/nightshift", ("data", "NIGHTSHIFT_BROKER"), "", "NIGHTSHIFT_BROKER"),
    (checks.runs_commands_that_exist, "gpu", REAPER, (*MAIN, "args"), ["reap"], "reap"),
    (checks.runs_commands_that_exist, "gpu", WORKER, (*MAIN, "args", 0), "--pol=a", "--pol"),
    (checks.runs_commands_that_exist, "gpu", WORKER, (*MAIN, "livenessProbe", "exec", "command", 1), "lives", "lives"),
    (checks.runs_commands_that_exist, "gpu", WORKER, (*MAIN, "lifecycle", "preStop", "exec", "command"), ["sleep", "9"], "sleep"),
    (checks.runs_commands_that_exist, "gpu", REAPER, (*POD, "initContainers", 0, "command", 2), "nightshift statos", "statos"),
    (checks.runs_commands_that_exist, "cpu-demo", "Job/nightshift-reviews", (*MAIN, "command", 1), "/usr/share/nightshift/examples/no.sh", "no.sh"),
    (checks.leaves_in_time, "gpu", WORKER, (*POD, "terminationGracePeriodSeconds"), 90, "killed"),
    (checks.leaves_in_time, "gpu", "ConfigMap/nightshift-settings", ("data", "NIGHTSHIFT_DRAIN_SECONDS"), "60", "killed"),
    (checks.is_watched, "gpu", WORKER, (*MAIN, "livenessProbe"), None, "livenessProbe"),
    (checks.is_watched, "gpu", REAPER, (*MAIN, "livenessProbe"), None, "livenessProbe"),
    (checks.is_watched, "gpu", WORKER, (*MAIN, "startupProbe"), HUNDRED, "model"),
    (checks.is_watched, "gpu", WORKER, (*MAIN, "lifecycle"), None, "drain"),
    (checks.is_watched, "gpu", WORKER, (*MAIN, "volumeMounts"), [], "shared memory"),
    (checks.leaves_in_time, "gpu", WORKER, (*MAIN, "env", 0), {"name": "NIGHTSHIFT_DRAIN_SECONDS", "value": "300"}, "killed"),
    (checks.is_given_time, "gpu", WORKER, (*MAIN, "livenessProbe", "periodSeconds"), 1, "all the time"),
    (checks.is_given_time, "gpu", WORKER, (*MAIN, "livenessProbe", "timeoutSeconds"), 1, "no time"),
    (checks.is_given_time, "gpu", REAPER, (*MAIN, "livenessProbe", "timeoutSeconds"), None, "no time"),
    (checks.is_given_time, "gpu", WORKER, (*MAIN, "livenessProbe", "failureThreshold"), 1, "ask again"),
    (checks.is_given_time, "gpu", WORKER, (*MAIN, "startupProbe", "timeoutSeconds"), 1, "no time"),
    (checks.runs_as_the_images_do, "gpu", WORKER, (*POD, "securityContext", "runAsUser"), 1000, "user"),
    (checks.runs_as_the_images_do, "gpu", REAPER, (*POD, "securityContext", "runAsGroup"), None, "user"),
    (checks.runs_as_the_images_do, "gpu", REAPER, (*MAIN, "securityContext", "runAsUser"), 1000, "user"),
    (checks.runs_as_the_images_do, "gpu", WORKER, (*POD, "securityContext", "fsGroup"), None, "group"),
    (checks.runs_as_the_images_do, "gpu", WORKER, (*MAIN, "volumeMounts", 3, "mountPath"), "/caches", "/cache/vllm"),
    (checks.runs_as_the_images_do, "gpu", WORKER, (*MAIN, "volumeMounts", 1, "mountPath"), "/run/night", "/run/nightshift"),
    (checks.runs_as_the_images_do, "gpu", REAPER, (*MAIN, "volumeMounts", 1, "mountPath"), "/run/night", "/run/nightshift"),
    (checks.is_scraped_with_its_key, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "path"), "/metric", "not served"),
    (checks.is_scraped_with_its_key, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "authorization", "credentials", "name"), "other", "another key"),
    (checks.is_scraped_with_its_key, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "authorization", "credentials", "key"), "other", "another key"),
    (checks.is_scraped_with_its_key, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "authorization", "type"), "Basic", "bearer"),
    (checks.is_scraped_with_its_key, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "relabelings"), [], "pulls"),
    (checks.has_images_of_this_release, "gpu", WORKER, (*MAIN, "image"), "nightshift/worker-gpu:9", "none of"),
    (checks.has_images_of_this_release, "cpu-demo", "Deployment/nightshift-redis", (*MAIN, "image"), "redis", "none of"),
    (checks.has_images_of_this_release, "gpu", "Job/nightshift-migrate", ("metadata", "name"), "nightshift-migrate", "upgrade"),
    (checks.selects_its_own_pods, "gpu", WORKER, ("spec", "selector", "matchLabels", "nightshift/pool"), "b", "own pods"),
    (checks.selects_its_own_pods, "gpu", WORKER, (*POD, "topologySpreadConstraints", 0, "labelSelector", "matchLabels"), {}, "spread"),
    (checks.selects_its_own_pods, "two-pools", WORKER, ("spec", "selector", "matchLabels", "nightshift/pool"), None, "both select"),
    (checks.selects_what_has_its_ports, "gpu", "PodDisruptionBudget/nightshift-worker", ("spec", "selector", "matchLabels", "a"), "b", "nothing"),
    (checks.selects_what_has_its_ports, "cpu-demo", "Service/nightshift-redis", ("spec", "selector", "a"), "b", "no pod"),
    (checks.selects_what_has_its_ports, ALL, "PodMonitor/nightshift", ("spec", "podMetricsEndpoints", 0, "port"), "http", "port http"),
    (checks.listens_where_it_says, ALL, WORKER, (*MAIN, "ports", 0, "containerPort"), 80, "listens"),
    (checks.listens_where_it_says, ALL, "ConfigMap/nightshift-settings", ("data", "NIGHTSHIFT_METRICS_PORT"), "80", "listens"),
    (checks.fits_its_schema, ALL, "HTTPRoute/nightshift-serve", (*RULE, "timeouts", "request"), "0", "request"),
    (checks.fits_its_schema, ALL, "HTTPRoute/nightshift-serve", ("spec", "host"), "a.example", "host"),
    (checks.leads_to_a_service, ALL, "HTTPRoute/nightshift-serve", (*RULE, "backendRefs", 0, "port"), 8080, "port 8080"),
    (checks.leads_to_a_service, ALL, "Service/nightshift-serve", ("metadata", "name"), "serve", "no service"),
    (checks.leads_to_what_is_served, ALL, "HTTPRoute/nightshift-serve", (*RULE, "matches", 0, "path", "value"), "/v", "/v1/files"),
    (checks.leads_to_what_is_served, ALL, "HTTPRoute/nightshift-serve", (*RULE, "matches", 1, "path", "value"), "/ap", "nothing is served"),
    (checks.lets_through_what_is_used, "gpu", "NetworkPolicy/nightshift-deny", ("spec", "podSelector", "matchLabels"), {"a": "b"}, "open"),
    (checks.lets_through_what_is_used, "gpu", "NetworkPolicy/nightshift-ledger", ("spec", "egress", 0, "ports", 0, "port"), 5433, "5433"),
    (checks.lets_through_what_is_used, "gpu", "NetworkPolicy/nightshift-https", ("spec", "podSelector", "matchLabels", "a"), "b", "nothing"),
    (checks.lets_through_what_is_used, ALL, "NetworkPolicy/nightshift-metrics", ("spec", "ingress", 0, "ports", 0, "port"), 80, "port 80"),
    (checks.lets_through_what_is_used, "cpu-demo", "NetworkPolicy/nightshift-redis", ("spec", "ingress", 0, "from", 0, "podSelector", "matchLabels", "a"), "b", "nobody"),
    (checks.lets_through_what_is_used, ALL, "NetworkPolicy/nightshift-cloud-identity", ("spec", "egress", 0, "to", 0, "ipBlock", "cidr"), "0.0.0.0/0", "80"),
    (checks.has_images_of_this_release, "cpu-demo", "Job/nightshift-reviews", ("metadata", "name"), "nightshift-reviews", "upgrade"),
    (checks.has_the_disk_that_it_may_fill, "gpu", WORKER, (*MAIN, "resources", "limits", "ephemeral-storage"), "200Gi", "may fill"),
    (checks.has_the_disk_that_it_may_fill, "gpu", WORKER, (*MAIN, "resources", "requests", "ephemeral-storage"), None, "may fill"),
    (checks.has_the_disk_that_it_may_fill, "gpu", REAPER, (*POD, "volumes", 0, "emptyDir"), {}, "fill the node"),
    (checks.refers_to_what_is_there, "gpu", WORKER, (*MAIN, "envFrom", 0, "configMapRef", "name"), "a", "ConfigMap a"),
    (checks.refers_to_what_is_there, "gpu", WORKER, (*MAIN, "env", 1, "valueFrom", "secretKeyRef", "name"), "a", "Secret a"),
    (checks.refers_to_what_is_there, "gpu", WORKER, (*POD, "serviceAccountName"), "a", "ServiceAccount a"),
    (checks.refers_to_what_is_there, "gpu", WORKER, (*POD, "priorityClassName"), "a", "PriorityClass a"),
    (checks.refers_to_what_is_there, "gpu", WORKER, (*MAIN, "volumeMounts", 0, "name"), "a", "volumes"),
    (checks.refers_to_what_is_there, "cpu-demo", "PersistentVolumeClaim/nightshift-data", ("metadata", "name"), "a", "Claim"),
    (checks.refers_to_what_is_there, "gpu", WORKER, ("metadata", "namespace"), "default", "namespace"),
    (checks.asks_for_resources, "gpu", REAPER, (*MAIN, "resources", "limits"), {}, "limits"),
    (checks.asks_for_resources, "gpu", WORKER, (*MAIN, "resources", "requests", "cpu"), None, "requests"),
    (checks.asks_for_resources, "gpu", WORKER, (*MAIN, "resources", "limits", "nvidia.com/gpu"), None, "GPU"),
    (checks.scales_by_its_own_pool, "keda", "ScaledObject/nightshift-worker", ("spec", "scaleTargetRef", "name"), "a", "nothing"),
    (checks.scales_by_its_own_pool, "keda", WORKER, ("spec", "replicas"), 3, "replicas"),
    (checks.scales_by_its_own_pool, "keda", WORKER, ("spec", "template", "metadata", "labels", "nightshift/pool"), "b", "another pool"),
    (checks.scales_by_its_own_pool, "keda", WORKER, (*MAIN, "args"), ["--slots=2"], "2 slots"),
    (checks.scales_by_its_own_pool, "keda", "ScaledObject/nightshift-worker", ("spec", "triggers", 0, "metricType"), "Value", "share"),
    (checks.scales_by_its_own_pool, "keda", "ScaledObject/nightshift-worker", ("spec", "triggers", 0, "metadata", "activationTargetQueryValue"), "1", "wakes"),
    (checks.scales_by_its_own_pool, "keda", "TriggerAuthentication/nightshift-keda", ("metadata", "name"), "a", "sign in"),
]  # fmt: skip


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_a_check_finds_what_it_is_for(
    rendered: Rendered, check: Callable[..., Iterator[str]]
) -> None:
    faults = [fault for each, *fault in FAULTS if each is check]
    assert faults, "nobody has seen it find something"
    for overlay, name, where, value, said in faults:
        objects = broken(rendered(overlay), name, where, value)
        found = list(check(objects))
        assert any(said in fault for fault in found), (overlay, name, where, value, found)


def broken(objects: list[Object], name: str, where: tuple[Any, ...], value: Any) -> list[Object]:
    """The objects with another value in one place; a value of None takes the key away."""
    found = [
        thing
        for thing in objects
        # The ends of generated names, and the release in the migration's, do not matter.
        if re.fullmatch(rf"{name}(-[a-z0-9]{{10}}|-[0-9-]+)?", checks.name_of(thing))
    ]
    assert len(found) == 1, name
    place: Any = found[0]
    for step in where[:-1]:
        place = place[step]
    if value is None:
        del place[where[-1]]
    else:
        place[where[-1]] = value
    return objects


def test_alerts_and_dashboard_of_a_cluster_are_those_of_observe(rendered: Rendered) -> None:
    observe = ROOT / "observe"
    found = {checks.name_of(thing): thing for thing in rendered(ALL)}
    rules = yaml.safe_load((observe / "prometheus" / "rules.yml").read_text())
    # kustomize breaks lines anew, which means nothing in PromQL.
    for rule in rules_of(spec := found["PrometheusRule/nightshift"]["spec"]) + rules_of(rules):
        rule["expr"] = rule["expr"].split()
    assert spec == rules
    dashboard = found["ConfigMap/nightshift-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"] == {
        path.name: path.read_text() for path in (observe / "grafana" / "dashboards").iterdir()
    }


def rules_of(spec: Object) -> list[Object]:
    return [rule for group in spec["groups"] for rule in group["rules"]]


def test_the_operator_selects_what_the_page_labels(rendered: Rendered) -> None:
    [name] = [
        name
        for name, text in of_the_page().items()
        if name.startswith("mine") and "release:" in text
    ]
    labelled = {
        thing["kind"]
        for thing in rendered(name)
        if "release" in thing["metadata"].get("labels", {})
    }
    assert labelled == {"PodMonitor", "PrometheusRule"}


def test_keda_knows_the_slots_of_each_pool(rendered: Rendered) -> None:
    """Whatever the reader's patches made of them."""
    [eight] = [name for name in of_the_page() if KEDA in name and eight_gpus(rendered(name))]
    wanted = {
        "keda": {"default": "1"},
        KEDA: {"default": "1"},
        eight: {"default": "8"},
        ANOTHER_POOL: {"night": "1"},
        "keda-two-pools": {"default": "1", "large": "4"},
    }
    for overlay, pools in wanted.items():
        triggers = [
            thing["spec"]["triggers"][0]["metadata"]
            for thing in rendered(overlay)
            if thing["kind"] == "ScaledObject"
        ]
        assert {
            trigger["query"].split("'")[1]: trigger["targetQueryValue"] for trigger in triggers
        } == pools


def test_a_spot_node_is_left_before_it_goes(rendered: Rendered) -> None:
    """The page's patch for a notice of 30 s."""
    [spot] = [
        name for name, text in of_the_page().items() if name.startswith("mine") and "/spot" in text
    ]
    [pool] = [thing for thing in rendered(spot) if checks.name_of(thing) == WORKER]
    container = pool["spec"]["template"]["spec"]["containers"][0]
    given = checks.settings_of(rendered(spot), container)
    assert Settings(drain_seconds=float(given["NIGHTSHIFT_DRAIN_SECONDS"])).leave_seconds <= 30


def test_a_reaper_gets_the_time_that_compose_gives_it(rendered: Rendered) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["reaper"]
    [reaper] = [thing for thing in rendered("gpu") if checks.name_of(thing) == REAPER]
    given = reaper["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"{given}s" == compose["stop_grace_period"]


def test_who_waits_for_the_tables_leaves_when_told(rendered: Rendered, tmp_path: Path) -> None:
    """The first process of a container gets no signal that it does not ask for."""
    scripts = {
        container["command"][2]
        for overlay in (ALL, "cpu-demo")
        for _, template in checks.templates(rendered(overlay))
        for container in template["spec"].get("initContainers", [])
    }
    assert scripts
    asked = tmp_path / "asked"
    stub = tmp_path / "nightshift"
    stub.write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    stub.chmod(0o755)
    for script in scripts:
        asked.unlink(missing_ok=True)
        waiting = subprocess.Popen(
            ["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, start_new_session=True
        )
        try:
            for _ in range(600):
                if asked.exists():
                    break
                time.sleep(0.1)
            waiting.terminate()
            assert waiting.wait(60) == 143  # by itself: -15 would be the kernel's doing
        finally:
            if waiting.poll() is None:
                os.killpg(waiting.pid, signal.SIGKILL)
                waiting.wait(60)


def eight_gpus(objects: list[Object]) -> bool:
    pools = [thing for thing in objects if checks.name_of(thing) == WORKER]
    return [checks.slots(pool["spec"]["template"]) for pool in pools] == [8]


def test_each_fault_is_that_of_a_check() -> None:
    assert {check for check, *_ in FAULTS} == set(checks.CHECKS)


def test_pools_differ_in_what_a_pool_is_and_in_nothing_else(rendered: Rendered) -> None:
    """The CPU demo's workers and those of the GPU overlay are one Deployment but for these."""
    may_differ = re.compile(
        r"/spec/replicas|/spec/template/spec/("
        r"(initContainers|containers)/0/(image|resources|env/\d/valueFrom/secretKeyRef/name)"
        r"|tolerations|containers/0/volumeMounts/4|volumes/4|volumes/\d/emptyDir/sizeLimit)"
    )
    both = [
        next(thing for thing in rendered(overlay) if checks.name_of(thing) == WORKER)
        for overlay in ("gpu", "cpu-demo")
    ]
    different = set(differences("", *both))
    assert different
    assert [path for path in different if not may_differ.match(path)] == []


def differences(path: str, one: Any, other: Any) -> Iterator[str]:
    """Where two objects are not the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(f"{path}/{key}", one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list):
        for place in range(max(len(one), len(other))):
            pair = [each[place] if place < len(each) else None for each in (one, other)]
            yield from differences(f"{path}/{place}", *pair)
    elif one != other:
        yield path


def manifests() -> dict[str, str]:
    """Text of every file under k8s/, without comments."""
    return {
        str(path.relative_to(K8S)): re.sub(r"(?m)^\s*#.*\n", "", path.read_text())
        for path in sorted(K8S.rglob("*"))
        if path.is_file() and path.name != "secrets.env"
    }


@pytest.mark.parametrize(
    "value",
    [
        r"(NIGHTSHIFT_\w+=)",
        r"(newTag|0-1-0)",
        r"(terminationGracePeriodSeconds: 120)",
        r"(nightshift/pool: default)",
        r"(containerPort: 9464)",
        r"(pod-security\S+ restricted)",
    ],
)
def test_a_value_has_one_source(value: str) -> None:
    """Each stands in one file; a setting or a label is given its value once."""
    found: dict[str, set[str]] = {}
    for path, text in manifests().items():
        for what in re.findall(value, text):
            found.setdefault(what, set()).add(path)
    assert found
    assert {what: paths for what, paths in found.items() if len(paths) > 1} == {}


def test_no_secret_is_kept_here_and_the_demos_file_is_ignored(rendered: Rendered) -> None:
    for overlay in OVERLAYS:
        kinds = [thing["kind"] for thing in rendered(overlay)]
        assert ("Secret" in kinds) == (overlay == "cpu-demo")
    ignored = (ROOT / ".gitignore").read_text().split()
    assert any(fnmatch.fnmatch("k8s/overlays/cpu-demo/secrets.env", line) for line in ignored)
    example = manifests()["overlays/cpu-demo/secrets.env.example"]
    passwords = re.findall(r"PASSWORD=(.*)|:([^:@/]+)@", example)
    assert len(passwords) == 4
    assert all(re.fullmatch(r"<\w+>", one or other) for one, other in passwords)


def test_the_page_names_what_is_there(rendered: Rendered) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    named = set(re.findall(r"(?<![\w/])k8s/[\w./-]*\w", page))
    named -= {"k8s/overlays/mine", "k8s/overlays/mine/secrets.env"}  # the reader makes them
    assert [folder for folder in named if not (ROOT / folder).exists()] == []
    assert {f"k8s/overlays/{overlay}" for overlay in OVERLAYS} <= named
    for part in (K8S / "components").iterdir():
        assert f"components/{part.name}" in page
    for key in secret_keys(rendered(ALL)):
        assert key in page, key


def secret_keys(found: Any) -> Iterator[str]:
    """Every key of a secret that these objects want, wherever it stands."""
    if isinstance(found, dict):
        if "key" in found and str(found.get("name", "")).startswith("nightshift"):
            yield found["key"]
        for value in found.values():
            yield from secret_keys(value)
    elif isinstance(found, list):
        for value in found:
            yield from secret_keys(value)
