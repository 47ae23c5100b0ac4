"""Prometheus with its real package: what a scrape returns, and that dashboard and alerts use it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from redlock_django import leader
from redlock_django.contrib.prometheus import RedlockCollector
from redlock_django.exceptions import ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.locking.reports import counter_types
from redlock_django.testing import held_elsewhere, memory_masters
from tests.pages import ROOT

if TYPE_CHECKING:
    from pytest_django import Settings

TWO = {
    "default": {"MASTERS": ["redis://u:secret@a", "redis://b", "redis://c"]},
    "payments": {"MASTERS": ["redis://d"]},
}


@pytest.fixture(autouse=True)
def _masters(settings: Settings) -> None:
    settings.REDLOCK = TWO


def scraped() -> list[Sample]:
    """Return the samples of a scrape."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RedlockCollector())
    text = generate_latest(registry).decode()
    assert "secret" not in text
    assert "order" not in text, "a resource must not be a label"
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def values() -> dict[tuple[str, str, str], float]:
    """Return the values of a scrape by metric, alias and master."""
    return {
        (name, labels["using"], labels.get("master", "")): value
        for name, labels, value, *_ in scraped()
    }


def test_a_scrape_returns_all_counters() -> None:
    with memory_masters() as backend:
        with lock("order:1"):
            pass
        with held_elsewhere("order:2"), pytest.raises(ResourceLocked):
            lock("order:2").acquire()
        backend.refuse(1)
        seen = values()
    assert seen["redlock_acquired_total", "default", ""] == 1
    assert seen["redlock_released_total", "default", ""] == 1
    assert seen["redlock_refused_total", "default", ""] == 1
    assert seen["redlock_lost_total", "default", ""] == 0
    assert seen["redlock_acquired_total", "payments", ""] == 0
    assert seen["redlock_held_seconds_total", "default", ""] > 0
    assert seen["redlock_master_errors_total", "default", "b:6379"] == 1
    assert len([name for name, using, _ in seen if using == "payments"]) == len(counter_types()) + 4
    assert seen["redlock_master_up", "default", "b:6379"] == 0
    assert seen["redlock_master_up", "default", "c:6379"] == 1


def test_each_holder_of_a_name_with_a_limit_is_counted_once() -> None:
    with memory_masters():
        held = [lock("order:1", limit=3) for _ in range(3)]
        for one in held:
            one.acquire().disown()
        with pytest.raises(ResourceLocked):
            lock("order:1", limit=3).acquire()
        for one in held:
            one.release()
        seen = values()
    numbers = {name: value for (name, using, _), value in seen.items() if using == "default"}
    assert numbers["redlock_acquired_total"] == numbers["redlock_released_total"] == 3
    assert numbers["redlock_refused_total"] == 1


def test_registering_reads_no_settings(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"MASTER": "wrong"}}
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RedlockCollector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(RedlockCollector())


def test_the_metrics_show_whether_this_process_leads_and_since_when(
    redlock_memory: object,
) -> None:
    def shown() -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in RedlockCollector().collect()
            for sample in family.samples
            if sample.name.startswith("redlock_leading") and sample.labels["using"] == "default"
        }

    assert shown() == {"redlock_leading": 0, "redlock_leading_since_seconds": 0}
    with leader("scheduler") as term:
        assert shown() == {
            "redlock_leading": 1,
            "redlock_leading_since_seconds": term.since.timestamp(),
        }


# The dashboard and the rules of alerts.

FILES = ROOT / "docs/how-to/observe"
DASHBOARD = json.loads((FILES / "grafana-dashboard.json").read_text())
ALERTS = FILES / "prometheus-alerts.yml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
# What Grafana replaces in an expression before Prometheus gets it.
GRAFANA = {"$__rate_interval": "1m", "$using": ".*"}


@pytest.fixture
def exported(redlock_memory: object) -> dict[str, set[str]]:
    """The metrics that a scrape returns after some locks, with the labels of each."""
    with lock("order:1"):
        pass
    with held_elsewhere("order:2"), pytest.raises(ResourceLocked):
        lock("order:2").acquire()
    return {sample.name: set(sample.labels) for sample in scraped()}


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


def test_each_metric_and_label_is_exported(exported: dict[str, set[str]]) -> None:
    for expression, shown in expressions():
        names, selected, kept = used_in(expression)
        assert names, expression
        assert names <= set(exported), expression
        for name in names:
            assert selected[name] | kept <= exported[name], expression
        labels = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)
        assert set(labels) <= kept, (expression, shown)


def test_the_dashboard_shows_each_metric(exported: dict[str, set[str]]) -> None:
    shown = set().union(
        *(used_in(t["expr"])[0] for panel in DASHBOARD["panels"] for t in panel["targets"])
    )
    assert shown == {name for name in exported if not name.endswith("_created")}


def test_the_variable_of_the_dashboard_lists_aliases(exported: dict[str, set[str]]) -> None:
    [_, using] = DASHBOARD["templating"]["list"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", using["query"]["query"])
    assert found is not None
    assert found[2] in exported[found[1]]


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
