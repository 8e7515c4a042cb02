"""The rows, each with the tests that show it; in the order and with the numbers of their list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that must hold.

    Attributes:
        number: Of the row in the list.
        claim: What holds.
        tests: Files of ``tests/`` or tests in them, as pytest takes them; none if it is not shown.
        expression: Which of them, as ``pytest -k`` takes it; all if empty.
        examples: Hypothesis profile.
        missing: What of the row the tests do not show, or why there are none.
    """

    number: int
    claim: str
    tests: tuple[str, ...] = ()
    expression: str = ""
    examples: str = ""
    missing: str = ""


_CHART: Final = "integration/chart"
_RENDERS: Final = f"{_CHART}/test_what_the_chart_renders.py"
_INSTALLING: Final = f"{_CHART}/test_installing_on_a_real_control_plane.py"
_DAEMONSETS: Final = f"{_CHART}/test_the_operator_keeps_the_daemonsets_of_pools.py"
_UNINSTALLING: Final = f"{_CHART}/test_uninstalling.py"
_VALIDATION: Final = "integration/api/test_validation.py"
_KUBECTL: Final = "integration/api/test_kubectl.py"
_POLICIES: Final = "integration/operator/test_policy_to_node.py"
_STATUS: Final = "integration/operator/test_policy_status.py"
_RESTART: Final = "integration/operator/test_restart.py"
_NO_NODE: Final = "needs a node with a kubelet"

INSTALL: Final = (
    Row(number=1, claim="One command installs, Ready within 90 s", missing=_NO_NODE),
    Row(
        number=2,
        claim="Defaults need no cert-manager and no Prometheus operator",
        tests=(
            f"{_RENDERS}::test_nothing_of_the_prometheus_operator_or_cert_manager_is_needed",
            f"{_INSTALLING}::test_what_was_installed_is_accepted_by_the_server",
        ),
        missing="pods that become Ready: " + _NO_NODE,
    ),
    Row(
        number=3,
        claim="Wrong values fail at render and name the key",
        tests=(f"{_CHART}/test_wrong_values_fail_at_render.py",),
    ),
    Row(number=4, claim="Lint finds nothing", tests=(f"{_RENDERS}::test_lint_finds_nothing",)),
    Row(
        number=5,
        claim="Renders for Kubernetes 1.30 to 1.37, valid against the schemas of each",
        tests=(
            f"{_RENDERS}::test_every_supported_version_gets_what_it_serves",
            f"{_RENDERS}::test_what_is_rendered_is_valid_for_the_version_in_every_field",
        ),
    ),
    Row(
        number=6, claim="Two renders are equal", tests=(f"{_RENDERS}::test_two_renders_are_equal",)
    ),
    Row(number=7, claim="`helm test` passes", missing="the chart has no test hook"),
    Row(
        number=8,
        claim="Every value is in the schema and described",
        tests=(
            f"{_RENDERS}::test_every_value_is_in_the_schema_and_described",
            f"{_RENDERS}::test_objects_of_the_schema_take_no_other_keys",
        ),
    ),
    Row(
        number=9,
        claim="Every image can be given by digest",
        tests=(f"{_RENDERS}::test_every_image_can_be_given_by_digest",),
    ),
)
API: Final = (
    Row(
        number=11,
        claim="`kubectl explain` describes every field",
        tests=(
            f"{_KUBECTL}::test_explain_describes_every_field",
            f"{_KUBECTL}::test_explain_knows_the_short_names",
        ),
    ),
    Row(
        number=12,
        claim="Category and short names",
        tests=(f"{_KUBECTL}::test_tables_and_short_names",),
    ),
    Row(
        number=13,
        claim="An unknown field is refused",
        tests=(_VALIDATION,),
        expression="unknown and field",
    ),
    Row(
        number=14,
        claim="The API server alone refuses a contradiction and names both fields",
        tests=(_VALIDATION,),
        expression="contradictory and caps",
    ),
    Row(
        number=15,
        claim="Bad quantities are refused",
        tests=(_VALIDATION,),
        expression="capacity and refused",
    ),
    Row(
        number=16,
        claim="A default above its limit is refused",
        tests=(_VALIDATION,),
        expression="default and above",
    ),
    Row(
        number=17,
        claim="A tenant's value above a limit is taken, cut and told",
        tests=(
            f"{_INSTALLING}::test_who_applies_a_value_above_a_limit_is_warned_and_not_refused",
            f"{_POLICIES}::test_a_limit_clamps_a_tenant_and_the_entry_says_from_what",
        ),
    ),
    Row(
        number=18,
        claim="Settings of the fleet have one place",
        tests=(_VALIDATION,),
        expression="rollout and another and name",
    ),
    Row(
        number=19,
        claim="`kubectl wait --for=condition=Ready` works after create and after change",
        tests=(f"{_STATUS}::test_wait_for_ready_works_after_create_and_after_change",),
    ),
    Row(
        number=20,
        claim="Conditions never flap",
        tests=(
            f"{_RESTART}::test_idle_nothing_is_written",
            (
                "integration/operator/test_with_agent.py"
                "::test_with_an_agent_nothing_is_written_while_nothing_changes"
            ),
        ),
        missing="seconds are watched, not ten minutes",
    ),
    Row(
        number=21,
        claim="The transition time moves only when the status does",
        tests=(f"{_STATUS}::test_the_transition_time_stays_when_only_the_reason_changes",),
    ),
    Row(
        number=22,
        claim="`kubectl get` shows whether it works and why not",
        tests=(f"{_STATUS}::test_kubectl_get_shows_ready_and_reason_of_all_three_kinds",),
    ),
    Row(
        number=23,
        claim="Objects of the version before still load",
        missing="there is no version before",
    ),
)
SEMANTICS: Final = (
    Row(
        number=24,
        claim="The documented precedence is executable",
        tests=("unit/api/test_precedence.py",),
    ),
    Row(
        number=25,
        claim="The order of policies does not matter",
        tests=("unit/api/test_laws.py::test_the_order_of_policies_does_not_matter",),
        examples="long",
    ),
    Row(
        number=26,
        claim="The older policy wins a tie, the loser names the winner",
        tests=(
            f"{_STATUS}::test_of_two_policies_with_one_selector_the_younger_is_not_accepted",
            (
                f"{_STATUS}"
                "::test_the_loser_is_overridden_and_names_the_winner_and_is_promoted_when_it_goes"
            ),
        ),
    ),
    Row(
        number=27,
        claim="Deleting the winner promotes the loser",
        tests=(
            (
                f"{_STATUS}"
                "::test_the_loser_is_overridden_and_names_the_winner_and_is_promoted_when_it_goes"
            ),
        ),
    ),
    Row(
        number=28,
        claim="A malformed value of a request gets the policy's",
        tests=(
            (
                "integration/slice/test_policies_cap_engines.py"
                "::test_a_malformed_request_field_gets_the_policys_cap"
            ),
            "unit/api/test_requests.py::test_a_malformed_cap_is_as_if_absent_and_told",
        ),
    ),
    Row(
        number=29,
        claim="A request can only narrow",
        tests=("unit/api/test_laws.py::test_a_request_only_narrows",),
        examples="long",
    ),
    Row(
        number=30,
        claim="A dry run changes nothing and reports all",
        tests=(f"{_STATUS}::test_a_dry_run_enforces_nothing_and_shows_what_it_would_do",),
    ),
    Row(
        number=31,
        claim="Changed labels are judged again",
        tests=(f"{_POLICIES}::test_a_namespace_whose_labels_change_is_judged_again",),
        expression="judged_again",
    ),
    Row(
        number=32,
        claim="`kubectl kvoffload explain pod` names the source of each field",
        tests=(
            (
                "integration/operator/test_kubectl_plugin.py"
                "::test_explain_names_the_source_of_each_field"
            ),
        ),
    ),
    Row(number=33, claim="`diff -f` shows what an apply would change", missing="no such command"),
)
RECONCILE: Final = (
    Row(
        number=35,
        claim="Users' objects get no annotation and no finalizer",
        tests=(
            (
                f"{_RESTART}"
                "::test_users_objects_get_no_finalizer_and_no_annotation_and_only_their_status_is_ours"
            ),
        ),
    ),
    Row(
        number=36,
        claim="Only their status is the operator's",
        tests=(
            (
                f"{_RESTART}"
                "::test_users_objects_get_no_finalizer_and_no_annotation_and_only_their_status_is_ours"
            ),
        ),
    ),
    Row(
        number=37,
        claim="Drift is put right, with an Event",
        tests=(f"{_DAEMONSETS}::test_an_edited_field_is_put_right_with_an_event_that_names_it",),
    ),
    Row(
        number=38,
        claim="Fields of others stay",
        tests=(f"{_DAEMONSETS}::test_fields_of_others_and_a_restart_by_kubectl_stay",),
    ),
    Row(
        number=39,
        claim="`kubectl rollout restart` works",
        tests=(f"{_DAEMONSETS}::test_fields_of_others_and_a_restart_by_kubectl_stay",),
        missing="pods that roll: " + _NO_NODE,
    ),
    Row(
        number=40,
        claim="A changed policy restarts no agent",
        tests=(f"{_DAEMONSETS}::test_a_changed_policy_restarts_no_agent",),
    ),
    Row(
        number=44,
        claim="A Node that is gone takes its KVOffloadNode with it",
        tests=(f"{_POLICIES}::test_a_node_that_is_deleted_takes_its_kvoffloadnode_with_it",),
    ),
)
UPGRADE: Final = (
    Row(
        number=61,
        claim="`helm uninstall` leaves no pod and nothing stuck",
        tests=(_UNINSTALLING,),
        missing="pods of a kubelet: " + _NO_NODE,
    ),
    Row(number=62, claim="Policies survive it, and go with the CRDs", tests=(_UNINSTALLING,)),
    Row(
        number=63,
        claim="An upgrade with the same image restarts no agent",
        missing="there is no version before",
    ),
    Row(number=64, claim="`helm upgrade` upgrades the CRDs", missing="no test changes a CRD"),
    Row(
        number=65,
        claim="`helm rollback` works",
        tests=(f"{_INSTALLING}::test_a_rollback_brings_back_the_cap_and_loses_no_policy",),
    ),
    Row(
        number=66,
        claim="The agent of the version before works",
        missing="there is no version before",
    ),
)
SECURITY: Final = (
    Row(
        number=67,
        claim="No wildcard, no secret, no write to nodes",
        tests=(
            "unit/operator/test_rbac.py",
            (
                f"{_RENDERS}"
                "::test_rights_are_those_of_the_shipped_manifests_in_the_releases_namespaces"
            ),
        ),
    ),
    Row(number=68, claim="Rights are those that are used", missing="no audit log is kept"),
    Row(
        number=69,
        claim="An agent writes its own node's object only",
        tests=(f"{_INSTALLING}::test_an_agent_writes_the_status_of_its_own_node_only",),
    ),
    Row(
        number=70,
        claim="The operator runs where `restricted` is enforced",
        tests=(
            f"{_INSTALLING}::test_a_namespace_that_enforces_restricted_takes_the_operators_pods",
        ),
    ),
    Row(
        number=71,
        claim="Root read-only, no capabilities, seccomp, no root user, no token by itself",
        tests=(
            f"{_RENDERS}::test_the_operators_pod_passes_the_restricted_standard",
            (
                "unit/operator/test_agent_daemonsets.py"
                "::test_the_agent_is_nobody_and_its_root_read_only"
            ),
        ),
    ),
)
USERS: Final = (
    Row(
        number=83,
        claim="After an installation, `kubectl diff` is empty",
        missing="not tried",
    ),
    Row(
        number=85,
        claim="The command line has stable JSON and helpful errors",
        tests=(
            "unit/operator/test_kubectl_output.py",
            "unit/operator/test_kubectl.py",
        ),
        missing="completion",
    ),
)
ROWS: Final = (*INSTALL, *API, *SEMANTICS, *RECONCILE, *UPGRADE, *SECURITY, *USERS)
