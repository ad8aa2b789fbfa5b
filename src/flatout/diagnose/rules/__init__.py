"""The rules, one file per finding. Specific rules come before the general ones, which get the seconds that remain.

A rule is a module with `CODE`, `NAME`, `find(context) -> list[Finding]` and a docstring with five headings: What it
means, Why it costs, Evidence, Change to try, When this is wrong. `flatout explain` and the docs use the docstring.
An optional `HOST_EVIDENCE` lists the functions of `host_evidence.py` that add host measurements to the finding.
"""

from __future__ import annotations

from types import ModuleType

from flatout.diagnose.rules import (
    allocator_churn,
    checkpoint_stall,
    data_loading,
    drift,
    eager_mode,
    epoch_boundary,
    epoch_sawtooth,
    evaluation_stall,
    exposed_all_gather,
    exposed_communication,
    garbage_collection,
    host_bound,
    host_sync,
    idle_cores,
    idle_devices,
    late_in_turn,
    memory_copy,
    no_kv_cache,
    no_tensor_cores,
    periodic_stall,
    pipeline_bubble,
    preprocessing,
    redundant_gradient_sync,
    repeated_prefill,
    separate_reductions,
    small_batch,
    small_kernels,
    straggler,
    thread_oversubscription,
    unbalanced_data,
)

# Rules that read the step log of a recording, which has all steps of the job. They need no trace; `checkpoint_stall`
# reads a plain trace too, and those of calls read both.
LOG_RULES: tuple[ModuleType, ...] = (
    checkpoint_stall,
    epoch_boundary,
    garbage_collection,
    evaluation_stall,
    periodic_stall,
    epoch_sawtooth,
    no_kv_cache,
    repeated_prefill,
    drift,
    preprocessing,
    small_batch,
    thread_oversubscription,
)

TRACE_RULES: tuple[ModuleType, ...] = (
    data_loading,
    memory_copy,
    redundant_gradient_sync,
    separate_reductions,
    exposed_all_gather,
    exposed_communication,
    pipeline_bubble,
    idle_devices,
    unbalanced_data,
    no_tensor_cores,
    allocator_churn,
    idle_cores,
    host_sync,
    small_kernels,
    eager_mode,
    host_bound,
    late_in_turn,
    straggler,
)

RULES = (*LOG_RULES, *TRACE_RULES)
