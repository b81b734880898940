"""Which of torch's tests are run, and which are left out and why.

All of them live in `torch.testing._internal.distributed.distributed_test`, which is part of the
torch wheel.
"""

# These run on the CPU exactly as torch ships them.
AS_SHIPPED = (
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_ddp_create_graph",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_grads_same_across_ranks_with_no_sync",
    "test_static_graph_api_cpu",
    "test_get_future",
    "test_ddp_logging_data_cpu",
)

# These are skipped on a machine without GPUs. Nothing in them needs one but the device names,
# so they run under the shim of cpu_shim.py.
UNDER_SHIM = (
    "test_ddp_zero_output_features",
    "test_get_data_parallel_params",
    "test_ddp_sync_module_states",
    "test_ddp_ignore_params_arg",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_namedtuple",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_control_flow_different_across_ranks",
    "test_invalid_static_graph",
    "test_ddp_model_diff_num_params_across_ranks",
    "test_output_unused_in_loss_tuple_module",
    "test_output_unused_in_loss_dict_module",
    "test_undefined_grad_parity_unused_parameters",
    "test_different_graph_across_ranks",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_python_error_logged",
    "test_ddp_static_graph_nested_types",
    "test_ddp_returns_tensor_with_no_grad",
    "test_detect_ddp_is_actually_static",
    "test_ddp_new_tensor_in_fwd",
    "test_ddp_new_tensor_in_fwd_static_graph",
    "test_ddp_buffer_hook_allreduce",
    "test_ddp_broadcast_buffer_via_hook",
    "test_ddp_broadcast_buffer",
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "test_ddp_broadcast_buffers_deprecation_warning",
    "test_static_graph_multi_forward",
    "test_stateless_api_with_ddp",
    "test_ddp_forward_backward_hook",
    "test_ddp_device_mesh_initialization",
    "test_ddp_sink_noclone",
    "test_skip_all_reduce_unused_parameters",
    "test_ddp_bucket_cap_mb_list",
    "test_ddp_comm_hook_logging",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_join_model_equivalence",
    "test_ddp_uneven_inputs",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_remove_autograd_hooks",
)

ALL = AS_SHIPPED + UNDER_SHIM

# These ask torch's class for names, most of them private, that ours does not have. They run on
# `OverlappedWithTorchNames`, which answers to the names and leaves the work to our class.
WITH_TORCH_NAMES = {
    "test_ddp_unused_params_rebuild_buckets_exception": "torch's wording, one step later",
    "test_ddp_control_flow_same_across_ranks": "reducer._get_local_used_map, torch's wording",
    "test_ddp_control_flow_different_across_ranks": "reducer._get_local_used_map, torch's wording",
    "test_ddp_multiple_nested_unused_params_error": "torch's wording, one step later",
    "test_ddp_multiple_nested_unused_params_err_ignore_params": "torch's wording, one step later",
    "test_ddp_python_error_logged": "_get_ddp_logging_data",
    "test_detect_ddp_is_actually_static": "reducer._ddp_graph_static",
    "test_ddp_comm_hook_logging": "_get_ddp_logging_data, _register_builtin_comm_hook",
    "test_ddp_uneven_inputs": "_authoritative_rank, _get_ddp_logging_data",
    "test_ddp_uneven_input_join_disable": "_join_config",
}

# What our class is not meant to do, and so fails. Everything else has to pass.
LEFT_OUT = {
    "test_ddp_logging_data_cpu": "asks for the fields of torch's private telemetry",
    "test_invalid_static_graph": "wants an error when static_graph=True was a wrong promise; "
    "ours makes no use of the promise and averages rightly all the same",
    "test_different_graph_across_ranks": "wants buckets that are never planned anew under "
    "find_unused_parameters; ours plans them anew after the first backward in any case",
    "test_ddp_buffer_hook_allreduce": "a private hook for buffers; ours has buffers='average'",
    "test_ddp_broadcast_buffer_via_hook": "a private hook for buffers; ours has buffers='average'",
    "test_ddp_broadcast_buffers_deprecation_warning": "wants a warning that broadcast_buffers is "
    "an old name; ours takes both names as equals",
    "test_skip_all_reduce_unused_parameters": "an option that leaves out buckets which no rank "
    "uses, and hangs when the ranks disagree about them",
}

# Fewer passing tests than this is a failure of the whole run, and so is a longer LEFT_OUT.
FLOOR = 47
