"""What each route of MLflow's server does with places on this machine or another, judged for 3.17.2.

A route or a field of a request that is not here is new: read its handler, say here where it belongs, and attack it in
`test_artifact_guard.py` where it reads, writes or calls anything.
"""

import re

OPENS = """
    _abort_multipart_upload_artifact _complete_multipart_upload_artifact _create_multipart_upload_artifact
    _create_presigned_download_url _create_presigned_upload_url _get_presigned_download_url
    _delete_artifact_mlflow_artifacts _download_artifact _list_artifacts_mlflow_artifacts _upload_artifact
    _list_artifacts _list_logged_model_artifacts _graphql
    _batch_get_traces _get_trace _delete_traces _search_traces_v3 _get_trace_info_v3 _batch_get_trace_infos
    serve_artifacts serve_create_promptlab_run serve_get_logged_model_artifact serve_get_trace_artifact
    serve_model_version_artifact serve_upload_artifact
    artifact_router.download_artifact artifact_router.upload_artifact
"""
"""They open artifacts: every repository comes from the guarded registry."""

RECORDS = """
    _create_experiment _create_run _create_logged_model _create_model_version _start_trace_v3
    _deprecated_start_trace_v2 _set_trace_tag _set_trace_tag_v3 _set_experiment_tag _log_inputs _log_model
    _finalize_logged_model _create_dataset_handler _update_model_version _get_model_version_download_uri
    _register_scorer otel_api.export_traces
    mcp_server_api.create_mcp_server mcp_server_api.create_mcp_server_version
    mcp_server_api.create_mcp_access_endpoint mcp_server_api.update_mcp_access_endpoint
    mcp_server_api.update_mcp_server mcp_server_api.update_mcp_server_version
"""
"""They record a place, which is judged when it is opened; a model version's source is only resolved."""

NOT_OFFERED = """
    _create_webhook _update_webhook _test_webhook
    _create_gateway_secret _update_gateway_secret _create_gateway_endpoint _update_gateway_endpoint
    _create_gateway_model_definition _update_gateway_model_definition _attach_model_to_gateway_endpoint
    _create_gateway_endpoint_binding _create_gateway_guardrail _add_guardrail_to_endpoint
    _update_endpoint_guardrail_config _create_budget_policy _update_budget_policy _get_provider_config
    _delete_budget_policy _delete_gateway_endpoint _delete_gateway_endpoint_binding _delete_gateway_endpoint_tag
    _delete_gateway_guardrail _delete_gateway_model_definition _delete_gateway_secret
    _detach_model_from_gateway_endpoint _get_budget_policy _get_gateway_endpoint _get_gateway_guardrail
    _get_gateway_model_definition _get_gateway_secret_info _get_secrets_config _list_budget_policies
    _list_budget_windows _list_endpoint_guardrail_configs _list_gateway_endpoint_bindings _list_gateway_endpoints
    _list_gateway_guardrails _list_gateway_model_definitions _list_gateway_secrets _list_supported_models
    _list_supported_providers _remove_guardrail_from_endpoint _set_gateway_endpoint_tag
    _create_workspace_handler _update_workspace_handler _delete_workspace_handler _get_workspace_handler
    _list_workspaces_handler
    _invoke_genai_evaluate_handler _invoke_issue_detection_handler _invoke_scorer_handler
    _create_prompt_optimization_job job_api.submit_job
    gateway_api.invocations gateway_api.chat_completions gateway_api.list_models gateway_api.raw_proxy
    gateway_api.openai_passthrough_chat gateway_api.openai_passthrough_embeddings
    gateway_api.openai_passthrough_responses gateway_api.openai_passthrough_responses_compact
    gateway_api.typesafe_passthrough_system_one gateway_api.anthropic_passthrough_messages
    gateway_api.gemini_passthrough_generate_content gateway_api.gemini_passthrough_stream_generate_content
"""
"""Refused by the guard, or off: the gateway, workspaces and jobs by MLflow's own switches. (The assistant has none.)"""

DATABASE = """
    _add_dataset_to_experiments_handler _add_items_to_review_queue _calculate_trace_filter_correlation
    _cancel_job _cancel_prompt_optimization_job _create_assessment _create_issue _create_label_schema
    _create_registered_model _create_review_queue _delete_assessment _delete_dataset_handler
    _delete_dataset_records_handler _delete_dataset_tag_handler _delete_demo _delete_experiment
    _delete_experiment_tag _delete_label_schema _delete_logged_model _delete_logged_model_tag
    _delete_model_version _delete_model_version_tag _delete_prompt_optimization_job _delete_registered_model
    _delete_registered_model_alias _delete_registered_model_tag _delete_review_queue _delete_run _delete_scorer
    _delete_tag _delete_trace_tag _delete_trace_tag_v3 _delete_webhook _deprecated_end_trace_v2
    _deprecated_get_trace_info_v2 _deprecated_search_traces_v2 _generate_demo _get_assessment
    _get_dataset_experiment_ids_handler _get_dataset_handler _get_dataset_records_handler _get_experiment
    _get_experiment_by_name _get_issue _get_job _get_label_schema _get_label_schema_by_name _get_latest_versions
    _get_logged_model _get_metric_history _get_model_version _get_model_version_by_alias
    _get_online_scoring_configs _get_or_create_user_queue _get_prompt_optimization_job _get_registered_model
    _get_review_queue _get_review_queue_by_name _get_run _get_scorer _get_server_info _get_webhook
    _link_prompts_to_trace _link_traces_to_run _list_label_schemas _list_review_queue_items _list_review_queues
    _list_scorer_versions _list_scorers _list_webhooks _log_batch _log_logged_model_params _log_metric
    _log_outputs _log_param _not_implemented _query_trace_metrics _remove_dataset_from_experiments_handler
    _remove_items_from_review_queue _rename_registered_model _restore_experiment _restore_run
    _search_evaluation_datasets_handler _search_experiments _search_issues _search_logged_models
    _search_model_versions _search_prompt_optimization_jobs _search_registered_models _search_runs
    _set_dataset_tags_handler _set_logged_model_tags _set_model_version_tag _set_registered_model_alias
    _set_registered_model_tag _set_review_queue_item_status _set_tag _transition_stage _update_assessment
    _update_experiment _update_issue _update_label_schema _update_registered_model _update_review_queue
    _update_run _upsert_dataset_records_handler _upsert_online_scoring_config
    get_metric_history_bulk_interval_handler serve_get_metric_history_bulk
    serve_get_metric_history_bulk_interval serve_search_datasets
    health version server_info_api.health server_info_api.get_server_info
    serve serve_static_file static
    serve_gateway_proxy serve_get_ui_telemetry serve_post_ui_telemetry
    job_api.get_job job_api.cancel_job job_api.search_jobs
    mcp_server_api.search_mcp_servers mcp_server_api.search_all_access_endpoints
    mcp_server_api.set_mcp_server_version_tag mcp_server_api.delete_mcp_server_version_tag
    mcp_server_api.get_mcp_server_version mcp_server_api.delete_mcp_server_version
    mcp_server_api.search_mcp_server_versions mcp_server_api.get_mcp_access_endpoint
    mcp_server_api.delete_mcp_access_endpoint mcp_server_api.search_server_access_endpoints
    mcp_server_api.set_mcp_server_tag mcp_server_api.delete_mcp_server_tag mcp_server_api.set_mcp_server_alias
    mcp_server_api.get_version_by_alias mcp_server_api.delete_mcp_server_alias mcp_server_api.get_mcp_server
    mcp_server_api.delete_mcp_server
"""
"""They touch the database or MLflow's own files. The proxy of deployments knows an address of the environment alone,
and telemetry is off."""

PLACES = """
    AbortMultipartUpload.path CompleteMultipartUpload.parts.url CompleteMultipartUpload.path
    CreateAssessment.assessment.source.source_id CreateAssessment.assessment.source.source_type
    CreateDataset.profile CreateDataset.source CreateDataset.source_type CreateExperiment.artifact_location
    CreateGatewayEndpointBinding.resource_id CreateGatewayEndpointBinding.resource_type
    CreateIssue.root_causes CreateIssue.source_run_id CreateLoggedModel.source_run_id CreateModelVersion.source
    CreateMultipartUpload.path CreatePresignedDownloadUrl.path CreatePresignedUploadUrl.path
    CreatePromptOptimizationJob.source_prompt_uri CreateWebhook.url CreateWorkspace.default_artifact_root
    CreateWorkspace.trace_archival_config.location DeleteGatewayEndpointBinding.resource_id
    DeleteGatewayEndpointBinding.resource_type ListArtifacts.path ListGatewayEndpointBindings.resource_id
    ListGatewayEndpointBindings.resource_type ListLoggedModelArtifacts.artifact_directory_path
    LogInputs.datasets.dataset.profile LogInputs.datasets.dataset.source LogInputs.datasets.dataset.source_type
    StartTraceV3.trace.trace_info.assessments.source.source_id
    StartTraceV3.trace.trace_info.assessments.source.source_type UpdateAssessment.assessment.source.source_id
    UpdateAssessment.assessment.source.source_type UpdateAssessment.update_mask.paths UpdateWebhook.url
    UpdateWorkspace.default_artifact_root UpdateWorkspace.trace_archival_config.location
"""
"""Fields of requests whose names could mean a place."""

_PLACE = re.compile("uri|url|path|location|source|root|dir|file|artifact|destination|prefix")


def judged():
    """Names of the routes in the tables above; one that stands twice raises."""
    names = [name for table in (OPENS, RECORDS, NOT_OFFERED, DATABASE) for name in table.split()]
    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)
    return set(names)


def installed(app):
    """Names of the functions behind all routes of MLflow's app, Flask's and FastAPI's."""
    from mlflow.server import app as flask_app

    found = {rule.endpoint for rule in flask_app.url_map.iter_rules()}
    *routers, mount = app.routes
    assert hasattr(mount, "app"), "the last route hands on to Flask"
    for route in (route for router in routers for route in router.original_router.routes):
        found.add(f"{route.endpoint.__module__.rpartition('.')[2]}.{route.endpoint.__name__}")
    return found


def place_fields():
    """Fields of the requests that MLflow's server takes, by message, whose names could mean a place."""
    from mlflow.server.handlers import HANDLERS

    def fields(message, above, prefix=""):
        for field in message.fields:
            below = field.message_type
            if below is None:
                yield f"{prefix}{field.name}", field.name
            elif below.full_name not in above:
                yield from fields(below, above | {below.full_name}, f"{prefix}{field.name}.")

    found = set()
    for request in HANDLERS:
        message = request.DESCRIPTOR
        names = fields(message, {message.full_name})
        found |= {f"{message.name}.{path}" for path, name in names if _PLACE.search(name)}
    return found
