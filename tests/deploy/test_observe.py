"""Dashboard, alert rules and Prometheus's configuration: they parse, fit each other, and use only
what workers and reapers export.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from pydantic import BaseModel, ConfigDict, Field

from tests.support import exported

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "observe"
RULES = OBSERVE / "prometheus" / "rules.yml"
RULES_TEST = OBSERVE / "prometheus" / "rules_test.yml"
DASHBOARD = json.loads((OBSERVE / "grafana" / "dashboards" / "nightshift.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

METRIC_OF = {series: metric for metric in exported.metrics().values() for series in metric.series}

PROMETHEUS_OWN = {
    "up": {"job", "instance"},
    "ALERTS": {"alertname", "alertstate", "severity", "pool", "job_id", "name", "instance"},
}
"""Series that Prometheus itself makes, with the labels that we may expect."""

TARGET_LABELS = {"instance"}
"""What a scrape adds to each of our series."""

COUNTER_FUNCTIONS = {"rate", "irate", "increase", "resets"}
GAUGE_FUNCTIONS = {"changes", "delta", "deriv", "idelta", "predict_linear"}
ANY_FUNCTIONS = {"absent", "absent_over_time", "count_over_time", "present_over_time"}

UNITS = {"short", "none", "locale", "percentunit", "s", "dtdurations", "rowsps", "cps"}
"""Units of ours that stand in valueFormats/categories of @grafana/data 13.2."""


# --- expressions


def of_rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def of_dashboard() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert asked, variable["query"]
            yield f"${variable['name']}", f"count by ({asked[2]}) ({asked[1]})"
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


EXPRESSIONS = {"rules": [*of_rules()], "dashboard": [*of_dashboard()]}

of_each = pytest.mark.parametrize("expressions", EXPRESSIONS.values(), ids=EXPRESSIONS)


def every_node(
    expressions: list[tuple[str, str]],
) -> Iterator[tuple[str, Any, str | None]]:
    """Every node of each expression, with the function that it is a direct argument of, and where it
    stands, for the message of an assertion.
    """
    assert expressions
    for where, expression in expressions:
        for node, function in nodes(parsed(expression)):
            yield f"{where}, {expression}", node, function


def parsed(expression: str) -> promql.Expr:
    """The tree; what Grafana puts in is put in first."""
    return promql.parse(expression.replace("$__rate_interval", "1m"))


def nodes(node: Any, function: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Every node, with the function that it is a direct argument of."""
    yield node, function
    match node:
        case promql.Call():
            for argument in node.args:
                yield from nodes(argument, node.func.name)
        case promql.BinaryExpr():
            yield from nodes(node.lhs)
            yield from nodes(node.rhs)
        case promql.MatrixSelector():
            yield from nodes(node.vector_selector, function)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from nodes(node.expr, function)
        case promql.AggregateExpr():
            yield from nodes(node.expr)


def labels(modifier: Any) -> frozenset[str]:
    return frozenset() if modifier is None else frozenset(modifier.labels)


def known_labels(series: str) -> set[str]:
    if series in PROMETHEUS_OWN:
        return PROMETHEUS_OWN[series]
    buckets = {"le"} if series.endswith("_bucket") else set()
    return {*METRIC_OF[series].labels, *TARGET_LABELS, *buckets}


@of_each
def test_an_expression_uses_series_labels_and_values_that_are_exported(
    expressions: list[tuple[str, str]],
) -> None:
    for where, node, _ in every_node(expressions):
        if not isinstance(node, promql.VectorSelector):
            continue
        assert node.name in METRIC_OF or node.name in PROMETHEUS_OWN, f"{where}: {node.name}"
        known = known_labels(node.name)
        for matcher in node.matchers.matchers:
            assert matcher.name in known, f"{where}: {node.name} has no label {matcher.name}"
            values = getattr(METRIC_OF.get(node.name), "labels", {}).get(matcher.name)
            if values and not matcher.value.startswith("$"):
                given = set(matcher.value.split("|"))
                assert given <= values, f"{where}: {matcher.name} is never {matcher.value}"


@of_each
def test_counters_are_read_by_their_rise_and_gauges_as_they_are(
    expressions: list[tuple[str, str]],
) -> None:
    for where, node, function in every_node(expressions):
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            inner = [each for each, _ in nodes(node.args[1])]
            names = [each.name for each in inner if isinstance(each, promql.VectorSelector)]
            assert names, where
            assert all(name.endswith("_bucket") for name in names), where
            assert isinstance(inner[0], promql.AggregateExpr), where
            assert "le" in labels(inner[0].modifier), where
        if not isinstance(node, promql.VectorSelector) or function in ANY_FUNCTIONS:
            continue
        metric = METRIC_OF.get(node.name)
        if where.startswith("$") or metric is None:
            continue
        rises = metric.kind in ("counter", "histogram")
        wanted = COUNTER_FUNCTIONS if rises else {None, *GAUGE_FUNCTIONS}
        if not rises and function is not None and function.endswith("_over_time"):
            continue
        assert function in wanted, f"{where}: {function} of the {metric.kind} {node.name}"


@of_each
def test_what_is_grouped_or_joined_has_the_labels_for_it(
    expressions: list[tuple[str, str]],
) -> None:
    for where, node, _ in every_node(expressions):
        if isinstance(node, promql.AggregateExpr):
            missing = labels(node.modifier) - output_labels(node.expr)
            assert not missing, f"{where}: {node.expr} has no {missing}"
        if not isinstance(node, promql.BinaryExpr) or node.modifier is None:
            continue
        matching = node.modifier.matching
        if matching is None or matching.type != promql.LabelModifierType.Include:
            continue
        for side in (node.lhs, node.rhs):
            missing = labels(matching) - output_labels(side)
            assert not missing, f"{where}: {side} is joined by {missing}"


def output_labels(node: Any) -> set[str]:
    match node:
        case promql.AggregateExpr():
            return set(labels(node.modifier))
        case promql.VectorSelector():
            return known_labels(node.name)
        case promql.MatrixSelector():
            return known_labels(node.vector_selector.name)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return output_labels(node.expr)
        case promql.BinaryExpr():
            return output_labels(node.lhs) or output_labels(node.rhs)
        case promql.Call():
            return set().union(*map(output_labels, node.args))
        case _:
            return set()


# --- rules


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AlertLabels(Strict):
    severity: Literal["critical", "warning", "info"]


class Annotations(Strict):
    summary: str = Field(min_length=10, max_length=80)
    description: str = Field(min_length=30)
    runbook: str


class Alert(Strict):
    alert: str = Field(pattern=r"^Nightshift[A-Z][A-Za-z]+$")
    expr: str
    for_: str = Field("0s", alias="for", pattern=r"^[1-9]\d*[smh]$")
    labels: AlertLabels
    annotations: Annotations


class Group(Strict):
    name: str
    rules: list[Alert]


class Rules(Strict):
    groups: list[Group]

    @property
    def alerts(self) -> dict[str, Alert]:
        every = [rule for group in self.groups for rule in group.rules]
        assert len({rule.alert for rule in every}) == len(every)
        return {rule.alert: rule for rule in every}


def rules() -> Rules:
    return Rules.model_validate(yaml.safe_load(RULES.read_text()))


def test_the_rules_of_a_cluster_are_the_same() -> None:
    """`python observe/prometheus/prometheus_rule.py` writes them anew."""
    made = yaml.safe_load((RULES.parent / "prometheus-rule.yaml").read_text())
    assert made["spec"]["groups"] == yaml.safe_load(RULES.read_text())["groups"]


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = re.findall(r"^### (Nightshift\w+)$", page, re.M)
    assert sorted(sections) == sorted(rules().alerts)
    for alert in rules().alerts.values():
        assert alert.annotations.runbook == f"docs/operations.md#{alert.alert.lower()}"


def test_what_an_alert_says_has_the_labels_for_it() -> None:
    for alert in rules().alerts.values():
        had = output_labels(parsed(alert.expr))
        said = set(re.findall(r"\$labels\.(\w+)", str(alert.annotations)))
        assert said <= had, f"{alert.alert} says {said - had}"


def test_each_alert_fires_in_a_case_and_each_case_has_a_silence() -> None:
    fired: set[str] = set()
    for case in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        moments = case["promql_expr_test"]
        assert any("exp_samples" not in moment for moment in moments), case["name"]
        for moment in moments:
            for sample in moment.get("exp_samples", ()):
                fired |= set(re.findall(r'alertname="(\w+)"', sample["labels"]))
    assert fired == set(rules().alerts)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", RULES_TEST.name],
        cwd=RULES_TEST.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the dashboard


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Where `given` says something that `kept` does not."""
    match given, kept:
        case dict(), dict():
            for key, value in given.items():
                if key in kept:
                    yield from lost(value, kept[key], f"{path}.{key}")
                else:
                    yield f"{path}.{key}"
        case list(), list() if len(given) == len(kept):
            for number, pair in enumerate(zip(given, kept, strict=True)):
                yield from lost(*pair, f"{path}[{number}]")
        case _ if given != kept:
            yield f"{path}: {given!r} became {kept!r}"


def test_the_dashboard_says_nothing_that_grafanas_own_types_do_not_know() -> None:
    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, kept)) == []


def test_panels_fill_rows_of_24_columns_and_cover_none() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells: dict[tuple[int, int], str] = {}
    for panel in every:
        place = panel["gridPos"]
        assert place["w"] > 0
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert 0 <= x < 24
                other = cells.setdefault((x, y), panel["title"])
                assert other == panel["title"], f"{panel['title']} covers {other}"
    height = max(y for _, y in cells) + 1
    assert len(cells) == 24 * height, "there is a hole"
    for one, other in combinations(PANELS, 2):
        assert one["title"] != other["title"], one["title"]


def test_each_panel_is_described_and_refers_to_what_is_there() -> None:
    assert PANELS
    for panel in PANELS:
        title = panel["title"]
        assert len(panel["description"]) > 20, title
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        config = panel["fieldConfig"]
        properties = [each for over in config.get("overrides", ()) for each in over["properties"]]
        units = [config["defaults"]["unit"]]
        units += [each["value"] for each in properties if each["id"] == "unit"]
        assert set(units) <= UNITS, title
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs), title
        for transformation in panel.get("transformations", ()):
            named = re.findall(r"Value #(\w)", json.dumps(transformation))
            assert set(named) <= set(refs), (title, named)
        for target in panel["targets"]:
            assert bool(target.get("instant")) is (panel["type"] in ("stat", "table")), title
            shown = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            assert shown <= output_labels(parsed(target["expr"])), (title, target)
            if panel["type"] == "timeseries":
                assert target["legendFormat"], title


def test_a_table_shows_columns_that_its_queries_give() -> None:
    for panel in PANELS:
        if panel["type"] != "table":
            continue
        given = {"Time", "Value", *(f"Value #{target['refId']}" for target in panel["targets"])}
        for target in panel["targets"]:
            given |= output_labels(parsed(target["expr"]))
        (how,) = [t["options"] for t in panel["transformations"] if t["id"] == "organize"]
        assert {*how["excludeByName"], *how["indexByName"], *how["renameByName"]} <= given
        shown = {how["renameByName"].get(name, name) for name in given}
        for override in panel["fieldConfig"].get("overrides", ()):
            assert override["matcher"]["options"] in shown


def test_the_variables_that_are_used_are_those_that_there_are() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert {name for name in used if not name.startswith("__")} == names
    assert {name for name in used if name.startswith("__")} <= {"__rate_interval", "__all"}


# --- how they come together


COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CONFIG = yaml.safe_load((OBSERVE / "prometheus" / "prometheus.yml").read_text())


def mounts(service: str) -> dict[str, Path]:
    """Path in the container to the file or folder of the repository that is mounted there."""
    pairs = (volume.split(":") for volume in COMPOSE[service]["volumes"])
    return {pair[1]: ROOT / pair[0] for pair in pairs if pair[0].startswith("./")}


def test_compose_mounts_what_prometheus_reads() -> None:
    inside = mounts("prometheus")
    assert inside["/etc/prometheus/prometheus.yml"] == OBSERVE / "prometheus" / "prometheus.yml"
    for path in CONFIG["rule_files"]:
        assert inside[path] == RULES
    assert all(path.is_file() for path in inside.values())


def test_prometheus_scrapes_each_service_that_has_metrics_with_its_key() -> None:
    looked_up: set[str] = set()
    for job in CONFIG["scrape_configs"]:
        key = job["authorization"]["credentials_file"]
        assert key in "".join(COMPOSE["prometheus"]["entrypoint"])
        (names,) = job["dns_sd_configs"]
        looked_up |= set(names["names"])
        for name in names["names"]:
            environment = COMPOSE[name]["environment"]
            assert environment["NIGHTSHIFT_METRICS_PORT"] == str(names["port"])
            assert set(COMPOSE[name]["networks"]) & set(COMPOSE["prometheus"]["networks"])
    serving = {
        name
        for name, service in COMPOSE.items()
        if "NIGHTSHIFT_METRICS_PORT" in (service.get("environment") or {})
    }
    assert looked_up == serving


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = OBSERVE / "grafana" / "provisioning"
    inside = mounts("grafana")
    assert inside["/etc/grafana/provisioning"] == provisioning
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    host, port = re.fullmatch(r"http://([a-z]+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert any(str(published).endswith(f":{port}") for published in COMPOSE[host]["ports"])
    assert set(COMPOSE[host]["networks"]) & set(COMPOSE["grafana"]["networks"])
    assert source["type"] == DASHBOARD["templating"]["list"][0]["query"]
    assert source["jsonData"]["timeInterval"] == CONFIG["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "nightshift.yml").read_text())[
        "providers"
    ]
    assert inside[provider["options"]["path"]] == OBSERVE / "grafana" / "dashboards"
