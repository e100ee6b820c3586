"""The arguments of vLLM's AsyncEngineArgs and of its OpenAI server, by the worst that a value may do.

Read from the source of vLLM 0.32. A test compares these sets with the fields of the vLLM that is
installed: a new field is in none of them, and counts as code until somebody has read what it does.
"""

from collections.abc import Mapping


def _names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


BESIDE = _names("model revision")
"""Fields of engine itself, which engine.args cannot name."""

GPU_FACTORS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""Arguments whose product is the number of processes, one per GPU."""

KEEPS_ANSWERS = _names(
    "tensor_parallel_size pipeline_parallel_size data_parallel_size",
    "max_num_seqs max_num_active_seqs max_num_batched_tokens max_num_scheduled_tokens",
    "long_prefill_token_threshold long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill prefill_schedule_interval scheduler_reserve_full_isl",
    "scheduling_policy async_scheduling performance_mode stream_interval disable_log_stats",
    "renderer_num_workers gpu_memory_utilization kv_cache_memory_bytes",
    "num_gpu_blocks_override block_size enable_prefix_caching prefix_caching_hash_algo",
    "cpu_offload_gb kv_offloading_size decode_context_parallel_size enable_expert_parallel",
    "disable_custom_all_reduce max_parallel_loading_workers enforce_eager",
    "max_cudagraph_capture_size cudagraph_capture_sizes mm_processor_cache_gb",
    "mm_processor_cache_type",
)
"""Arguments that say how the same computation is cut into steps, and where its data are kept. They may change the order
of sums, as each other mixture of rows in a step does, and nothing else.
"""

_FEWER_BITS = _names(
    "kv_cache_dtype quantization quantization_config dtype mamba_cache_dtype",
    "mamba_ssm_cache_dtype spec_method spec_tokens",
)

_SPECULATES = _names("speculative_config spec_model")

FEWER_BITS = _FEWER_BITS | _SPECULATES
"""Arguments that compute with fewer bits or speculate, and so may change answers."""

PLAIN = (
    KEEPS_ANSWERS
    | _FEWER_BITS
    | frozenset(GPU_FACTORS)
    | _names(
        # the model: its size, numbers and kind
        "max_model_len seed runner convert",
        "allow_deprecated_quantization tokenizer tokenizer_mode tokenizer_revision",
        "skip_tokenizer_init config_format model_impl served_model_name max_logprobs logprobs_mode",
        "use_fp64_gumbel return_sampling_mask enable_trace_replay override_generation_config",
        "disable_sliding_window disable_cascade_attn pooler_config reasoning_parser reasoning_config",
        "aux_output_config enable_return_routed_experts diffusion_config watermark_config",
        # memory and caches
        "kv_cache_dtype_skip_layers",
        "prefix_cache_retention_interval",
        "prefix_match_unit kv_sharing_fast_prefill swa_bounded_replay",
        "cpu_offload_params offload_backend offload_params",
        "offload_group_size offload_num_in_group offload_prefetch_step watermark engram_config",
        "mamba_config mamba_backend mamba_block_size mamba_cache_mode",
        "mamba_cache_philox_rounds mamba_ssu_algorithm use_replayssm",
        "enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint",
        "replayssm_buffer_len enable_sleep_mode sleep_mode_offload_cudagraph",
        "sleep_preserve_parameter_names enable_cumem_allocator enable_nccl_comm_suspend",
        "enable_shm_tensor_arena disable_hybrid_kv_cache_manager",
        # the scheduler
        "max_num_queued_reqs max_num_queued_tokens",
        "disable_chunked_mm_input",
        "optimization_level",
        # kernels and CUDA graphs
        "attention_backend attention_config kernel_config ir_op_priority moe_backend linear_backend",
        "sparse_indexer_topk_backend enable_flashinfer_autotune gdn_prefill_backend",
        "kda_prefill_backend kda_decode_backend",
        "jit_monitor_mode jit_monitor_verbose",
        # GPUs of this machine that work together
        "dcp_comm_backend dcp_q_replicate dcp_kv_cache_interleave_size",
        "cp_kv_cache_interleave_size enable_hc_sp enable_ep_weight_filter",
        "enable_batch_sharded_sampling all2all_backend enable_eplb expert_placement_strategy",
        "enable_dbo ubatch_size dbo_decode_token_threshold dbo_prefill_token_threshold",
        "dp_sync_interval disable_nccl_for_dp_synchronization",
        "distributed_timeout_seconds cpu_distributed_timeout_seconds",
        "enable_fault_tolerance fault_tolerance_config",
        # images and other media
        "language_model_only limit_mm_per_prompt interleave_mm_strings",
        "mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_only",
        "mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype skip_mm_profiling",
        "mm_encoder_fp8_scale_save_margin video_pruning_rate video_pruning_method mm_tensor_ipc",
        "mm_processor_device mm_ipc_gpu_memory_gb mm_device_do_normalize enable_mm_processor_stats",
        # LoRA, of which jobs load no adapters
        "enable_lora max_loras max_lora_rank fully_sharded_loras max_cpu_loras lora_dtype",
        "lora_target_modules enable_tower_connector_lora specialize_active_lora",
        "enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels",
        # the load of the weights
        "safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size",
        "ignore_patterns use_tqdm_on_load pt_load_map_location",
        # drafts without a model of their own
        # numbers about the engine
        "aggregate_engine_logging log_level show_hidden_metrics_for_version",
        "per_request_spec_decode_metrics kv_cache_metrics kv_cache_metrics_sample",
        "custom_histogram_buckets cudagraph_metrics enable_mfu_metrics enable_layerwise_nvtx_tracing",
        "enable_logging_iteration_details",
        # the end of the engine, and its environment
        "shutdown_timeout tokens_only fail_on_environ_validation",
        # the OpenAI server
        "chat_template_content_format default_chat_template_kwargs enable_auto_tool_choice",
        "enable_prompt_tokens_details exclude_tools_when_tool_choice_none response_role",
        "return_tokens_as_token_ids tool_call_parser",
    )
)
"""Arguments that a job may set freely: sizes, numbers, and names out of vLLM's own lists."""

BEYOND_THE_SLOT = _names("nnodes data_parallel_size_local data_parallel_backend device_ids")
"""Arguments with which vLLM counts GPUs in another way than by GPU_FACTORS."""

OPERATOR = BEYOND_THE_SLOT | _names(
    # files and folders of the worker
    "allowed_local_media_path download_dir model_weights generation_config default_mm_loras",
    "mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path profiler_config chat_template",
    # addresses, and other machines
    "allowed_media_domains otlp_traces_endpoint collect_detailed_traces kv_events_config",
    "master_addr master_port node_rank data_parallel_address data_parallel_rpc_port",
    "data_parallel_rank data_parallel_start_rank",
    "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb",
    "enable_elastic_ep elastic_ep_max_dp_size kv_offloading_backend",
    # GPUs and cores of other slots, and other programs
    "numa_bind numa_bind_nodes numa_bind_cpus ray_workers_use_nsight",
    # secrets and rows in places where they should not be
    "hf_token enable_log_requests",
    # tensors in rows, by which vLLM says a row may end it
    "enable_prompt_embeds enable_mm_embeds",
    # plugins that are installed, and settings that go on to libraries unread
    "io_processor_plugin load_format model_loader_extra_config media_io_kwargs",
    "mm_processor_kwargs additional_config eplb_config weight_transfer_config",
    # between processes of vLLM
    "_api_process_count _api_process_rank",
)
"""Arguments that reach beyond the engine: the operator allows each by name."""

RUNS_CODE = _SPECULATES | _names(
    # code that comes with a model, and which code that is
    "trust_remote_code code_revision hf_config_path hf_overrides",
    # classes and modules by name
    "worker_cls worker_extension_cls scheduler_cls logits_processors model_class_overrides",
    "distributed_executor_backend compilation_config",
    "kv_transfer_config ec_transfer_config ec_manager_config",
    "structured_outputs_config reasoning_parser_plugin",
    # files of Python's logging, which name callables
    "logging_config log_config_file",
)
"""Arguments that may import and call code that a job names: the operator allows each by name and model."""

PLAIN_KEYS = _names(
    "compilation_config.mode compilation_config.cudagraph_mode",
    "compilation_config.cudagraph_capture_sizes compilation_config.max_cudagraph_capture_size",
    "compilation_config.compile_sizes",
    "hf_overrides.architectures hf_overrides.classifier_from_token hf_overrides.num_labels",
    "hf_overrides.is_matryoshka hf_overrides.matryoshka_dimensions",
    "hf_overrides.is_original_qwen3_reranker hf_overrides.max_position_embeddings",
    "hf_overrides.rope_parameters hf_overrides.rope_scaling hf_overrides.rope_theta",
    "mm_processor_kwargs.min_pixels mm_processor_kwargs.max_pixels mm_processor_kwargs.num_crops",
    "mm_processor_kwargs.fps mm_processor_kwargs.do_pan_and_scan",
    "model_loader_extra_config.enable_multithread_load model_loader_extra_config.num_threads",
    "model_loader_extra_config.concurrency model_loader_extra_config.memory_limit",
    "speculative_config.method speculative_config.num_speculative_tokens",
    "speculative_config.prompt_lookup_max speculative_config.prompt_lookup_min",
    "structured_outputs_config.backend structured_outputs_config.disable_any_whitespace",
    "structured_outputs_config.disable_additional_properties",
    "structured_outputs_config.enable_in_reasoning structured_outputs_config.reasoning_parser",
)
"""Keys that a job may set freely in arguments whose other keys need the operator's word."""

PLAIN_VALUES: Mapping[str, frozenset[str]] = {
    "distributed_executor_backend": _names("mp uni"),
    "generation_config": _names("auto vllm"),
    "load_format": _names("auto safetensors pt npcache dummy mistral sharded_state gguf"),
}
"""Values that a job may set freely for arguments whose other values need the operator's word."""
