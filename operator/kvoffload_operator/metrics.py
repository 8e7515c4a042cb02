"""Metrics under the names that dashboards for controllers already know.

The names and meanings of ``controller_runtime_*``, ``workqueue_*``, ``rest_client_*`` and
``leader_election_*`` are those of controller-runtime and client-go.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)


class Metrics:
    """Every metric of the operator, in a registry of its own so that tests do not share it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        registry = self.registry
        self.reconciles = Counter(
            "controller_runtime_reconcile_total",
            "Reconciliations per controller and result",
            ["controller", "result"],
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Failed reconciliations per controller",
            ["controller"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation",
            ["controller"],
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.workers = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Workers of the queue",
            ["controller"],
            registry=registry,
        )
        self.active_workers = Gauge(
            "controller_runtime_active_workers",
            "Workers that reconcile now",
            ["controller"],
            registry=registry,
        )
        self.queue_depth = Gauge("workqueue_depth", "Keys that wait", ["name"], registry=registry)
        self.queue_adds = Counter("workqueue_adds_total", "Keys added", ["name"], registry=registry)
        self.unfinished = Gauge(
            "workqueue_unfinished_work_seconds",
            "For how long the keys in process have been so, summed up",
            ["name"],
            registry=registry,
        )
        self.longest = Gauge(
            "workqueue_longest_running_processor_seconds",
            "For how long the longest of them has been in process",
            ["name"],
            registry=registry,
        )
        self.queue_retries = Counter(
            "workqueue_retries_total",
            "Keys that failed and wait again",
            ["name"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key waited",
            ["name"],
            buckets=(0.001, 0.01, 0.1, 1, 10, 60, 300),
            registry=registry,
        )
        self.work_seconds = Histogram(
            "workqueue_work_duration_seconds",
            "How long a key was processed",
            ["name"],
            buckets=(0.001, 0.01, 0.1, 1, 10, 60, 300),
            registry=registry,
        )
        self.requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server",
            ["code", "method"],
            registry=registry,
        )
        self.leading = Gauge(
            "leader_election_master_status",
            "1 while this replica leads",
            ["name"],
            registry=registry,
        )
        self.informer_objects = Gauge(
            "kvoffload_informer_objects", "Objects in the cache", ["resource"], registry=registry
        )
        self.informer_age = Gauge(
            "kvoffload_informer_last_event_age_seconds",
            "Seconds since a watch said anything, bookmarks included",
            ["resource"],
            registry=registry,
        )
        self.informer_relists = Counter(
            "kvoffload_informer_relists_total",
            "Lists taken, the first one included",
            ["resource", "reason"],
            registry=registry,
        )
        self.nodes = Gauge(
            "kvoffload_nodes", "KVOffloadNodes by state", ["state"], registry=registry
        )
        self.policy_conditions = Gauge(
            "kvoffload_policy_condition",
            "Policies by condition and its status",
            ["type", "status"],
            registry=registry,
        )
