"""Metrics and logs of a running operator."""

from __future__ import annotations

import urllib.request

import pytest
from tests.integration.operator.conftest import Cluster, Operator, populate

pytestmark = pytest.mark.cluster


def test_the_metrics_are_under_the_names_that_dashboards_know(operator: Operator) -> None:
    with urllib.request.urlopen(f"{operator.url}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}

    assert names >= {
        "controller_runtime_reconcile_total",
        "controller_runtime_reconcile_time_seconds_bucket",
        "controller_runtime_max_concurrent_reconciles",
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds_bucket",
        "workqueue_unfinished_work_seconds",
        "rest_client_requests_total",
        "leader_election_master_status",
        "kvoffload_nodes",
        "kvoffload_informer_objects",
        "process_resident_memory_bytes",
    }


def test_every_line_of_the_log_is_json_with_a_time_a_level_and_a_constant_event(
    cluster: Cluster, operator: Operator
) -> None:
    populate(cluster)
    records = operator.log()

    assert all({"ts", "level", "event"} <= set(record) for record in records)
    wrote = [record for record in records if record["event"] == "reconciled"]
    assert wrote
    assert all({"controller", "key", "reconcile_id"} <= set(record) for record in wrote)
