"""The dashboard and the scraping of compose.yaml ask for what the service exports, where it listens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.service.support import CPU, ODD, Service
from tirgemm.gemm import Gemm
from tirgemm.service.http import metrics
from tirgemm.tuning_db import JobRequest

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/tirgemm.json").read_text())
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
# What Prometheus itself says of what it scrapes, and adds to it.
OF_PROMETHEUS, ADDED_LABELS = {"up"}, {"job"}


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def asked(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names. Raises ValueError where it is none."""
    names: set[str] = set()
    labels: set[str] = set()

    def look(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None, f"a selector without a metric: {query}"
            names.add(node.name)
            labels.update(matcher.name for matcher in node.matchers.matchers)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(query), pre_visit=look)
    return names, labels


@pytest.fixture
def exported(service: Service, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The samples of a service that has had something of everything, with their labels."""
    monkeypatch.setattr(metrics, "FIGURES_SECONDS", -1.0)
    service.queue.register_worker("worker:1:0", [CPU])
    service.queue.submit(JobRequest(Gemm.parse(ODD), CPU))
    assert service.queue.claim("worker:1:0", [CPU.key], 600.0) is not None
    service.http.get("/metrics")
    families = text_string_to_metric_families(service.http.get("/metrics").text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def test_every_query_asks_for_what_is_exported(exported: dict[str, set[str]]) -> None:
    assert len(queries()) >= len(DASHBOARD["panels"]) > 10
    for query in queries():
        names, labels = asked(query)
        assert names <= exported.keys() | OF_PROMETHEUS, query
        known = set().union(*(exported.get(name, set()) for name in names))
        assert labels <= known | ADDED_LABELS, query


def test_every_metric_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = set().union(*(asked(query)[0] for query in queries()))
    parts = ("_sum", "_count", "_created")
    assert {name for name in exported if not name.endswith(parts)} <= shown


def test_a_query_that_is_none_or_asks_for_something_else_is_told(exported: dict[str, set[str]]) -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        asked("sum(rate(tirgemm_jobs[5m])")
    assert not asked("sum by (colour) (tirgemm_job)")[0] <= exported.keys()
    assert asked("sum by (colour) (tirgemm_job)")[1] == {"colour"}


def test_prometheus_scrapes_where_the_service_listens_by_a_name_that_it_answers_to() -> None:
    scraping = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = scraping["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    service = COMPOSE["services"][host]
    assert service["command"][service["command"].index("--port") + 1] == port
    assert host in service["environment"]["TIRGEMM_HOSTS"].split(",")
    (given,) = COMPOSE["services"]["prometheus"]["configs"]
    assert job["authorization"]["credentials_file"] == given["target"]
    assert given["source"] in COMPOSE["configs"]
    assert f'up{{job="{job["job_name"]}"}}' in queries()


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    (source,) = yaml.safe_load((ROOT / "deploy/grafana/datasource.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    host = source["url"].removeprefix("http://").partition(":")[0]
    assert host in COMPOSE["services"]
    (provider,) = yaml.safe_load((ROOT / "deploy/grafana/provider.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    assert provider["options"]["path"] in mounts.values()
    assert all((ROOT / path).exists() for path in mounts)
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
