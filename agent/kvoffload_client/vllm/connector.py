"""The class that vLLM loads (``kv_connector_module_path: kvoffload_client.vllm``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from kvoffload_client.vllm.config import ConnectorConfig, ConnectorConfigError
from kvoffload_client.vllm.identity import engine_shape
from kvoffload_client.vllm.metadata import StepMetadata, WorkerReport
from kvoffload_client.vllm.scheduler import SchedulerRole
from kvoffload_client.vllm.worker import WorkerRole

logger = logging.getLogger(__name__)


class KVOffloadConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # untyped vLLM
    """Loads and stores KV blocks through the node's kvoffload agent.

    vLLM makes one object per role: in the scheduler it asks the agent what to load and store, in
    each worker it copies. Without an agent the engine serves as if there were no connector.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        share_log_handlers()
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_role != "kv_both":
            raise ConnectorConfigError(f"kv_role must be kv_both, not {transfer.kv_role}")
        config = ConnectorConfig.from_extra_config(transfer.kv_connector_extra_config)
        shape = engine_shape(vllm_config, kv_cache_config)
        settings = config.client_settings(vllm_config)
        self._scheduler: SchedulerRole | None = None
        self._worker: WorkerRole | None = None
        if role == KVConnectorRole.SCHEDULER:
            recompute_failed_loads(transfer)
            self._scheduler = SchedulerRole(
                vllm_config,
                kv_cache_config,
                settings=settings,
                shape=shape,
                blocks_per_chunk=config.blocks_per_chunk,
            )
        else:
            self._worker = WorkerRole(
                kv_cache_config,
                settings=settings,
                shape=shape,
                rank=int(vllm_config.parallel_config.rank),
            )
        self._groups = len(shape.groups)

    @property
    def requires_kv_delivery(self) -> bool:
        """A store that is lost is a miss later: nothing has to wait for it."""
        return False

    # --- in the scheduler ---------------------------------------------------------------------

    @property
    def _in_scheduler(self) -> SchedulerRole:
        assert self._scheduler is not None
        return self._scheduler

    def on_new_request(self, request: Any) -> None:
        """See ``KVConnectorBase_V1``."""
        self._in_scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """See ``KVConnectorBase_V1``; all loads are asynchronous."""
        return self._in_scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See ``KVConnectorBase_V1``."""
        self._in_scheduler.alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """See ``KVConnectorBase_V1``."""
        return self._in_scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """See ``KVConnectorBase_V1``."""
        self._in_scheduler.workers_reported(connector_output.kv_connector_worker_meta)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See ``KVConnectorBase_V1``; blocks are freed at once, fences protect them."""
        del block_ids
        self._in_scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See ``SupportsHMA``."""
        del block_ids
        self._in_scheduler.finished(request)
        return False, None

    def reset_cache(self) -> bool:
        """See ``KVConnectorBase_V1``."""
        return self._in_scheduler.reset()

    def has_pending_push_work(self) -> bool:
        """See ``KVConnectorBase_V1``: stores are acknowledged in steps without requests too."""
        return self._in_scheduler.busy

    # --- in each worker -----------------------------------------------------------------------

    @property
    def _in_worker(self) -> WorkerRole:
        assert self._worker is not None
        return self._worker

    @property
    def _step(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """See ``KVConnectorBase_V1``."""
        self._in_worker.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """See ``KVConnectorBase_V1``; called before any block of the step is written."""
        assert isinstance(kv_connector_metadata, StepMetadata)
        self._in_worker.before_forward(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See ``KVConnectorBase_V1``."""
        del forward_context, kwargs
        self._in_worker.start_loads(self._step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request is scheduled after its load."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing to do: whole blocks are stored after the step."""

    def wait_for_save(self) -> None:
        """See ``KVConnectorBase_V1``; the stores begin with the next step."""
        self._in_worker.defer_stores(self._step)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """See ``KVConnectorBase_V1``; only loads hold blocks, so nothing is ever "sent"."""
        del finished_req_ids
        self._in_worker.poll()
        return set(), self._in_worker.take_finished()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """See ``KVConnectorBase_V1``; block ids of several groups are ambiguous in vLLM."""
        results = super().get_transfer_results(finished_req_ids)
        if self._groups > 1:
            results.failed_recving = self._in_worker.take_failed_requests()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """See ``KVConnectorBase_V1``."""
        return self._in_worker.take_failed_blocks() if self._groups == 1 else set()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """See ``KVConnectorBase_V1``."""
        return self._in_worker.take_report()

    def shutdown(self) -> None:
        """See ``KVConnectorBase_V1``."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()


def recompute_failed_loads(transfer: Any) -> None:
    """Make the engine recompute what could not be loaded.

    The engine reads ``kv_load_failure_policy`` after it has made its connector, and its default
    fails the request, which would make a lost agent visible to users.
    """
    if transfer.kv_load_failure_policy != "recompute":
        logger.info(
            "kv_load_failure_policy is %s; KVOffloadConnector sets it to recompute",
            transfer.kv_load_failure_policy,
        )
        transfer.kv_load_failure_policy = "recompute"


class OneLinePerOutage(logging.Filter):
    """Drops what workers say of their connection: the scheduler says it for the whole engine."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be written."""
        who = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        return not str(who).startswith("worker")


def share_log_handlers() -> None:
    """Write the client's log lines where the engine writes its own."""
    ours, engine = logging.getLogger("kvoffload_client"), logging.getLogger("vllm")
    if not ours.handlers:
        ours.handlers = list(engine.handlers)
        ours.setLevel(engine.level)
        ours.propagate = False
        logging.getLogger("kvoffload_client.connection").addFilter(OneLinePerOutage())
