"""SECURITY.md: every promise has a test, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = re.search(
    r"^## Promises$(.*)^## No promises$", (ROOT / "SECURITY.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
assert PROMISES is not None
BULLETS = re.findall(r"^- (.*)$", PROMISES[1], re.MULTILINE)

SERVER = "tests/api/server"
SECURITY = f"{SERVER}/test_security.py"
CONNECTIONS = f"{SERVER}/test_connections.py"
LIMITS = f"{SERVER}/test_limits.py"
CALLERS = f"{SERVER}/test_models_of_callers.py"
LIBRARIES = "tests/fedsim/models/test_library_models.py"
LOCAL_RAY = "tests/jobs/local_ray/test_embedded_ray.py"
RAY_CONNECTION = "tests/jobs/run/test_ray_connection.py"

TESTS: dict[str, tuple[str, ...]] = {
    "token-required": (
        f"{SECURITY}::test_beyond_loopback_a_token_is_required",
        f"{SERVER}/test_serving.py::test_serve_refuses_to_be_open_to_all",
    ),
    "token-asked": (f"{SECURITY}::test_every_route_but_health_asks_for_the_token",),
    "token-not-revealed": (f"{SECURITY}::test_missing_and_wrong_tokens_get_one_and_the_same_answer",),
    "foreign-pages": (
        f"{SECURITY}::test_a_foreign_host_is_refused",
        f"{SECURITY}::test_a_page_from_elsewhere_may_not_call",
        f"{SECURITY}::test_a_page_from_elsewhere_may_not_show_an_answer_as_an_image",
        f"{SECURITY}::test_beyond_loopback_addresses_and_own_names_are_allowed",
    ),
    "page-scripts": (f"{SECURITY}::test_answers_forbid_what_browsers_might_do_with_them",),
    "names-are-text": (
        "tests/api/page/test_page_job.py::test_the_curve_grows_while_the_job_runs",
        "tests/api/page/test_page_compare.py::test_names_in_the_legend_are_text",
        "tests/api/reports/test_report.py::test_the_report_of_a_job_opens_from_disk_without_a_network",
    ),
    "data-roots": (
        "tests/fedsim/data/test_hub.py::test_a_data_set_of_the_hub_names_no_file_of_this_machine",
        "tests/fedsim/data/test_data_paths.py::"
        "test_every_text_parameter_stays_in_the_data_roots_or_names_no_file",
        f"{SECURITY}::test_a_spec_reaches_no_file_outside_the_data_roots",
        "tests/fedsim/data/test_hugging_face.py::test_a_set_names_no_images_outside_the_data_roots",
        "tests/fedsim/data/test_hugging_face.py::test_a_set_names_no_files_in_other_columns",
        "tests/fedsim/data/test_hugging_face.py::test_a_set_of_the_hub_reads_its_own_files_only",
    ),
    "weights-in-data-roots": (
        f"{CALLERS}::test_a_service_reads_no_file_that_a_caller_names",
        "tests/jobs/spec/test_init.py::test_a_service_reads_no_files_outside_its_data_roots",
        "tests/fedsim/models/test_texts.py::test_weights_outside_the_data_roots_are_refused",
        f"{LIBRARIES}::test_weights_are_read_only_from_where_fedsim_looks",
        f"{LIBRARIES}::test_no_setting_makes_transformers_read_a_file",
    ),
    "not-the-working-folder": (
        f"{SECURITY}::test_a_spec_reaches_no_file_where_the_service_was_started",
        f"{SERVER}/test_work_process.py::test_no_code_of_the_working_folder_runs",
    ),
    "job-files": (
        f"{SERVER}/test_artifacts.py::test_what_is_no_artifact_or_not_there_yet_is_not_found",
        "tests/jobs/test_settings.py::test_what_is_no_job_id_becomes_no_path",
    ),
    "page-files": (f"{SECURITY}::test_files_beside_the_page_are_not_served",),
    "specs-are-data": (
        f"{SECURITY}::test_yaml_that_is_more_than_data_is_refused",
        "tests/jobs/spec/test_made_specs.py::test_tags_anchors_and_objects_are_refused",
    ),
    "no-python-models": (
        f"{CALLERS}::test_code_of_callers_is_refused_and_not_run",
        f"{CALLERS}::test_a_job_from_the_time_when_code_was_allowed_is_not_resumed",
        f"{LIBRARIES}::test_a_published_model_runs_no_code_and_takes_only_settings",
        f"{LIBRARIES}::test_a_published_configuration_names_no_code_and_no_files",
    ),
    "images-are-data": ("tests/fedsim/data/test_images.py::test_no_image_is_a_program",),
    "no-pickles": (
        f"{SECURITY}::test_pickles_are_never_opened",
        "tests/fedsim/data/test_images.py::test_a_damaged_cifar_batch_is_named",
        "tests/fedsim/models/test_initial_weights.py::test_other_files_are_refused",
    ),
    "trackers-by-operator": ("tests/jobs/tracking/test_tracking.py::test_a_spec_names_no_tracker",),
    "body-size": (f"{SECURITY}::test_a_large_body_is_refused",),
    "request-time": (
        f"{CONNECTIONS}::test_who_does_not_finish_a_request_is_closed",
        f"{CONNECTIONS}::test_a_caller_that_goes_on_gets_no_more_time",
    ),
    "connections": (
        f"{CONNECTIONS}::test_others_are_answered_while_many_are_half_open",
        f"{CONNECTIONS}::test_the_oldest_that_waits_makes_room",
        f"{CONNECTIONS}::test_a_caller_that_does_not_read_its_answer_makes_room",
        f"{CONNECTIONS}::test_with_few_open_files_the_service_still_answers",
    ),
    "unread-answers": (
        f"{CONNECTIONS}::test_answers_that_nobody_reads_take_bounded_memory",
        f"{CONNECTIONS}::test_a_log_is_read_no_faster_than_its_caller_reads_it",
        f"{SERVER}/test_event_hub.py::test_a_watcher_that_does_not_read_holds_few_events",
        f"{SERVER}/test_logs.py::test_a_caller_who_has_gone_is_no_line_for_each_piece",
    ),
    "large-pages": (
        f"{SERVER}/test_routes.py::test_large_records_take_more_pages",
        "tests/jobs/store/test_store_pages.py::test_pages_of_large_rows_end_early",
        "tests/jobs/store/test_store_pages.py::test_pages_of_large_specs_have_fewer_jobs",
        "tests/jobs/store/test_store_pages.py::test_the_lengths_of_rows_behind_a_page_are_not_read",
        f"{SERVER}/test_comparison.py::test_few_comparisons_and_pages_run_at_once",
    ),
    "unsent-bodies": (f"{CONNECTIONS}::test_bodies_that_do_not_come_whole_take_bounded_memory",),
    "rate": (
        f"{LIMITS}::test_who_asks_too_often_is_told_when_to_come_again",
        f"{CONNECTIONS}::test_one_address_has_a_limit",
    ),
    "streams": (f"{LIMITS}::test_streams_are_limited_and_come_free",),
    "spec-size": (
        "tests/jobs/spec/test_spec_limits.py::test_a_text_that_would_take_long_to_read_is_refused",
        "tests/jobs/spec/test_made_specs.py::test_data_that_no_machine_would_hold_is_refused",
        f"{SERVER}/test_refusals.py::test_too_many_fields_are_one_fault",
        f"{SERVER}/test_refusals.py::test_a_spec_that_is_too_long_to_be_listed_is_refused",
    ),
    "checks": (
        f"{SERVER}/test_data_checks.py::test_a_class_map_of_large_data_is_refused_and_others_are_made",
        f"{SERVER}/test_slow_lookups.py::test_others_are_served_while_many_send_what_takes_long_to_read",
        "tests/jobs/plan/test_checker.py::test_a_check_that_reads_files_or_builds_much_needs_a_process",
        "tests/jobs/plan/test_checker.py::test_a_process_cannot_take_more_memory_than_its_limit",
        "tests/jobs/plan/test_planner.py::test_a_planner_process_takes_no_more_memory_than_a_check",
        "tests/fedsim/training/test_effort.py::test_the_count_of_a_large_model_takes_no_memory",
    ),
    "workers": (
        "tests/jobs/spec/test_spec_limits.py::test_no_spec_starts_thousands_of_workers_on_a_core",
        "tests/jobs/queue/test_packing.py::test_a_job_takes_what_its_spec_asks_for",
    ),
    "comparisons": (
        f"{SERVER}/test_comparison.py::test_jobs_with_too_large_records_are_refused",
        f"{SERVER}/test_slow_lookups.py::test_a_look_up_ends_when_nobody_waits_for_it",
        f"{SERVER}/test_comparison.py::test_few_comparisons_and_pages_run_at_once",
    ),
    "patterns": (
        "tests/fedsim/data/test_audio.py::test_no_pattern_takes_long",
        f"{LIBRARIES}::test_no_pattern_of_an_adapter_takes_long",
    ),
    "no-traces": (f"{SERVER}/test_refusals.py::test_a_bug_is_answered_without_a_trace",),
    "no-secrets-in-logs": (
        f"{SERVER}/test_logs.py::test_the_token_is_in_no_log_whatever_happens",
        f"{SERVER}/test_logs.py::test_passwords_of_urls_are_hidden_in_every_spelling",
    ),
    "readiness-without-secrets": (
        "tests/jobs/queue/test_troubles.py::test_what_anybody_may_ask_for_tells_no_secrets",
    ),
    "passwords-to-jobs": (
        "tests/jobs/queue/test_reconciler.py::test_passwords_go_by_a_file_for_the_owner_only",
    ),
    "home-is-private": (
        "tests/jobs/test_home_permissions.py::test_an_open_home_is_closed",
        "tests/jobs/test_home_permissions.py::test_only_its_user_may_write_into_a_home",
        "tests/jobs/test_home_permissions.py::test_a_home_of_somebody_else_where_all_may_write_is_refused",
        "tests/jobs/test_settings.py::test_directories_are_made_when_they_are_asked_for",
    ),
    "ray-is-private": (
        f"{LOCAL_RAY}::test_no_other_user_can_enter_its_directory",
        f"{RAY_CONNECTION}::test_ray_has_a_private_directory_for_as_long_as_it_is_there",
        f"{RAY_CONNECTION}::test_a_directory_that_others_may_use_is_refused",
    ),
    "ray-on-loopback": (
        f"{SERVER}/test_work_process.py::test_a_ray_that_a_plan_starts_listens_on_loopback_only",
        f"{LOCAL_RAY}::test_ray_listens_on_loopback_only",
    ),
    "ray-asks-for-a-token": (
        f"{LOCAL_RAY}::test_ray_asks_for_the_token",
        f"{RAY_CONNECTION}::test_a_ray_of_our_own_has_a_token_that_only_its_user_can_read",
    ),
    "ray-of-others": (
        "tests/jobs/queue/test_ray_jobs.py::test_a_cluster_without_a_token_is_warned_of_or_refused",
        f"{SECURITY}::test_beyond_loopback_ray_needs_a_token_unless_that_is_allowed",
    ),
    "ray-cluster-yaml": (
        "tests/project/test_cluster_config.py::test_every_node_has_rays_token_and_asks_for_it",
    ),
    "compose-yaml": ("tests/project/test_deployment.py::test_addresses_ports_and_volumes_belong_together",),
}


@cache
def list_tests(file: str) -> set[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_a_name_and_a_test() -> None:
    names = [re.match(r"`([a-z-]+)`: [A-Z]", bullet) for bullet in BULLETS]
    assert [bullet for bullet, name in zip(BULLETS, names, strict=True) if name is None] == []
    assert [name[1] for name in names if name] == list(TESTS)


@pytest.mark.parametrize("promise", TESTS)
def test_the_tests_of_a_promise_exist(promise: str) -> None:
    assert TESTS[promise]
    for node in TESTS[promise]:
        file, _, name = node.partition("::")
        assert name in list_tests(file), node
