"""The dashboard and the alert rules use metrics and labels that a scrape really returns."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redlock_django.contrib.prometheus import RedlockCollector
from redlock_django.exceptions import ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.testing import held_elsewhere

FILES = Path(__file__).resolve().parents[2] / "docs/how-to/observe"
DASHBOARD = json.loads((FILES / "grafana-dashboard.json").read_text())
ALERTS = FILES / "prometheus-alerts.yml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
# What Grafana replaces in an expression before Prometheus gets it.
GRAFANA = {"$__rate_interval": "1m", "$using": ".*"}


@pytest.fixture
def scraped(redlock_memory: object) -> dict[str, set[str]]:
    """The metrics that a scrape returns after some locks, with the labels of each."""
    registry = CollectorRegistry()
    registry.register(RedlockCollector())
    with lock("order:1"):
        pass
    with held_elsewhere("order:2"), pytest.raises(ResourceLocked):
        lock("order:2").acquire()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if family.samples
    }


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression, with the text that shows its labels."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for rule in RULES:
        yield rule["expr"], json.dumps(rule["annotations"])


def used_in(expression: str) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Return the metrics of an expression, the labels it selects of each, and those it keeps."""
    for name, value in GRAFANA.items():
        expression = expression.replace(name, value)
    metrics: dict[str, set[str]] = {}
    kept: set[str] = set()

    def note(part: Any) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            selected = {matcher.name for matcher in part.matchers.matchers}
            metrics.setdefault(str(part.name), set()).update(selected)
        elif isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            kept.update(part.modifier.labels)
        for name in ("expr", "lhs", "rhs", "vector_selector", "vs"):
            if (inner := getattr(part, name, None)) is not None:
                note(inner)
        for inner in getattr(part, "args", None) or ():
            note(inner)

    note(promql_parser.parse(expression))
    return set(metrics), metrics, kept


def test_each_metric_and_label_is_exported(scraped: dict[str, set[str]]) -> None:
    for expression, shown in expressions():
        names, selected, kept = used_in(expression)
        assert names, expression
        assert names <= set(scraped), expression
        for name in names:
            assert selected[name] | kept <= scraped[name], expression
        labels = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)
        assert set(labels) <= kept, (expression, shown)


def test_the_dashboard_shows_each_metric(scraped: dict[str, set[str]]) -> None:
    shown = set().union(
        *(used_in(t["expr"])[0] for panel in DASHBOARD["panels"] for t in panel["targets"])
    )
    assert shown == {name for name in scraped if not name.endswith("_created")}


def test_the_variable_of_the_dashboard_lists_aliases(scraped: dict[str, set[str]]) -> None:
    [_, using] = DASHBOARD["templating"]["list"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", using["query"]["query"])
    assert found is not None
    assert found[2] in scraped[found[1]]


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return a time series for promtool, with a value for each minute."""
    texts = ", ".join(f'{key}="{value}"' for key, value in {"using": "default", **labels}.items())
    return {"series": f"redlock_{name}{{{texts}}}", "values": values}


QUIET = [
    series("acquired_total", "0+600x30"),
    series("refused_total", "0+60x30"),
    series("waited_total", "0+60x30"),
    series("waited_seconds_total", "0+60x30"),
    *(series(f"{name}_total", "0x30") for name in ("unavailable", "lost", "forced", "uncertain")),
    *(series("master_up", "1x30", master=name) for name in "abc"),
    *(series("master_errors_total", "0x30", master=name) for name in "abc"),
]
TROUBLE = {
    "RedlockUnavailable": [series("unavailable_total", "0+1x30")],
    "RedlockMasterDown": [series("master_up", "0x30", master="a")],
    "RedlockMasterUnstable": [series("master_errors_total", "0+1x30", master="a")],
    "RedlockLocksLost": [series("lost_total", "0+1x30")],
    "RedlockContention": [
        series("acquired_total", "0+60x30"),
        series("refused_total", "0+60x30"),
    ],
    "RedlockLongWaits": [
        series("waited_total", "0+10x30"),
        series("waited_seconds_total", "0+60x30"),
    ],
    "RedlockForcedRelease": [series("forced_total", "0+1x30")],
    "RedlockUncertainRequest": [series("uncertain_total", "0+1x30")],
}


def rendered(text: str, labels: dict[str, str]) -> str:
    """Return an annotation of an alert as Prometheus renders it."""
    for name, value in labels.items():
        text = text.replace("{{ $labels." + name + " }}", value)
    return text


def test_each_alert_has_a_case() -> None:
    assert [rule["alert"] for rule in RULES] == list(TROUBLE)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


@pytest.mark.nightly
def test_alerts_fire_in_trouble_only(tmp_path: Path) -> None:
    """By Prometheus's own tool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    tests = []
    for fired in [*TROUBLE, ""]:
        own = TROUBLE.get(fired, [])
        names = {one["series"] for one in own}
        alerts = []
        for rule in RULES:
            name = rule["alert"]
            labels = {"using": "default", "severity": rule["labels"]["severity"]}
            if "master" in used_in(rule["expr"])[2]:
                labels["master"] = "a"
            shown = {key: rendered(text, labels) for key, text in rule["annotations"].items()}
            alerts.append(
                {
                    "eval_time": "29m",
                    "alertname": name,
                    "exp_alerts": [{"exp_labels": labels, "exp_annotations": shown}]
                    if name == fired
                    else [],
                }
            )
        tests.append(
            {
                "interval": "1m",
                "input_series": [*own, *(one for one in QUIET if one["series"] not in names)],
                "alert_rule_test": alerts,
            }
        )
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
