"""The patches that `inside/` can apply, with their parameters: the contract between the catalogue and `inside/`.

A tuple lists the allowed values, a range the allowed integers.
"""

from __future__ import annotations

from collections.abc import Mapping

from flatout.records.change import Patch

Allowed = range | tuple[str | bool, ...]

PATCHES: Mapping[str, Mapping[str, Allowed]] = {
    # DataLoader.__init__: these keywords, of loaders that are iterated in the training loop.
    "dataloader": {
        "num_workers": range(257),
        "prefetch_factor": range(1, 65),
        "pin_memory": (True,),
        "persistent_workers": (True,),
        "multiprocessing_context": ("forkserver",),
    },
    # DataLoader.__init__: batch_size, where the loader makes its batches itself.
    "loader_batch": {"size": range(1, 100_001)},
    # DataLoader.__init__: batches of samples of like length, or of at most N tokens with their padding.
    "balanced_batches": {"max_tokens": range(1, 100_000_001)},
    # DataLoader.__init__: uneven batches of a DistributedSampler; this rank gets that much of its samples.
    "work_share": {"rank": range(65_536), "percent": range(10, 100)},
    # Tensor.to, .cuda and Module.to from pinned host memory to the device: non_blocking=True. Never the other way.
    "non_blocking_copies": {},
    # DistributedDataParallel.__init__: these keywords; `first_bucket_mib` is an argument of the reducer that it makes.
    "ddp": {
        "bucket_cap_mb": range(1, 4097),
        "first_bucket_mib": range(1, 4097),
        "gradient_as_bucket_view": (True,),
        "static_graph": (True,),
    },
    # DistributedDataParallel: forward and backward of all passes but the last before an optimizer step in no_sync().
    "ddp_no_sync": {"passes": range(2, 4097)},
    # register_comm_hook. `rank` is PowerSGD's, `percent` what Top-K sends, `start` the step from which PowerSGD begins;
    # `momentum`: Top-K applies the momentum of SGD to each rank's own gradients.
    "ddp_hook": {
        "hook": ("bf16", "fp16", "int8", "powersgd", "topk"),
        "rank": range(1, 33),
        "start": range(2, 1_000_001),
        "percent": range(1, 51),
        "momentum": (True,),
    },
    # ProcessGroupNCCL.Options of each process group for which the script passes none; NCCL takes both together only.
    "nccl_options": {"min_ctas": range(1, 65), "max_ctas": range(1, 65)},
    # DistributedDataParallel: no exchange of gradients; weights are averaged at every N-th step (`outer`: DiLoCo).
    "local_sgd": {"every": range(2, 10_001), "outer": (True,)},
    # fully_shard, and set_modules_to_{forward,backward}_prefetch on the units in the order of their first forward.
    # `ranks_per_copy`: the mesh of a fully_shard over all ranks has two dimensions, and this many ranks share one copy.
    "fsdp2": {
        "reshard_after_forward": (False,),
        "forward_prefetch": range(1, 9),
        "backward_prefetch": range(1, 9),
        "ranks_per_copy": range(1, 4097),
    },
    # set_requires_gradient_sync(False) for all passes but the last before an optimizer step.
    "fsdp2_no_sync": {"passes": range(2, 4097)},
    # Optimizer.__init__ of optimizers that have the keyword.
    "optimizer": {"fused": (True,), "foreach": (True,)},
    # Optimizer.zero_grad and Module.zero_grad: set_to_none=True.
    "zero_grad_to_none": {},
    "cudnn_benchmark": {},
    # Model and 4-d inputs to torch.channels_last.
    "channels_last": {},
    # torch.set_float32_matmul_precision("high") and cudnn.allow_tf32.
    "tf32": {},
    # torch.autocast around the model's forward and the loss; weights are unchanged.
    "autocast": {"dtype": ("bfloat16", "float16")},
    # torchao's Float8Linear, or Transformer Engine's Linear in fp8_autocast, in place of linear layers.
    "fp8": {"library": ("torchao", "transformer_engine")},
    # liger_kernel: its kernels on a model of transformers.
    "liger_kernels": {},
    # scaled_dot_product_attention by xformers.ops.memory_efficient_attention.
    "xformers_attention": {},
    # Adam and AdamW: their step times the trust ratio of each matrix.
    "lamb": {},
    # torch.optim.Adam and AdamW: those of a package that keeps moments in 8 bits.
    "optimizer_8bit": {"library": ("bitsandbytes", "torchao")},
    # torch.compile of the model that the wrapper holds, or of the whole one.
    "compile": {"mode": ("default", "reduce-overhead", "max-autotune-no-cudagraphs")},
    # torch.set_num_threads, also where the script sets another number.
    "num_threads": {"count": range(1, 257)},
    # onnxruntime.InferenceSession.__init__: these of its options.
    "onnx_session": {
        "threads": range(1, 257),
        "spinning": (False,),
        "optimize": (True,),
        "provider": ("cuda", "tensorrt", "openvino"),
    },
    # torch.onnx.export of a model that infers, and onnxruntime.InferenceSession in place of its forward.
    "onnx_export": {},
    # transformers: generate(use_cache=True), and cache_implementation="static".
    "kv_cache": {"static": (True,)},
    # transformers: config._attn_implementation before the model is built.
    "fused_attention": {"implementation": ("sdpa", "flash_attention_2")},
    # checkpoint(use_reentrant=False, preserve_rng_state=True) around repeated blocks.
    "activation_checkpointing": {"every": range(1, 65)},
    # torch.cuda.empty_cache does nothing.
    "keep_cache": {},
    # torch.save and distributed.checkpoint.save: copy to pinned memory, write in a thread, flush before exit.
    "background_checkpoint": {},
    # gc.freeze, gc.disable, or gc.collect at every N-th step; `after`: the steps before it.
    "garbage_collection": {
        "how": ("freeze", "off", "together"),
        "after": range(1, 1001),
        "every": range(1, 100_001),
    },
    # os.sched_setaffinity before threads start, by local rank.
    "bind_cores": {"by": ("numa", "exclusive")},
}


def patch_problem(patch: Patch) -> str | None:
    """Describe in one line the problem of a patch; None if there is none."""
    allowed = PATCHES.get(patch.name)
    if allowed is None:
        return f"there is no patch `{patch.name}`"
    for name, value in patch.parameters.items():
        rule = allowed.get(name)
        if rule is None:
            return f"the patch `{patch.name}` has no parameter `{name}`"
        if value not in rule or (isinstance(value, bool) and isinstance(rule, range)):
            return f"the patch `{patch.name}` does not take {name} = {value}"
    return None
