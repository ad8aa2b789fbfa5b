"""Write the changes as lines for the user's code, as an alternative to patches. Running the file does nothing.

There is one function per patch of `change.patches`; a test checks that none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.emit import ddp_snippets, package_snippets
from flatout.emit.command import argument_notes
from flatout.emit.heading import commented
from flatout.emit.package_snippets import Lines, keywords
from flatout.emit.package_snippets import function as _function
from flatout.records.change import Patch
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    changes = tuning.changes
    parts = ["from __future__ import annotations\n\nimport contextlib\nimport os\n\nimport torch\n"]
    if changes.environment:
        lines = ["# Before torch is imported, or better in the environment:"]
        lines += [f"os.environ[{name!r}] = {value!r}" for name, value in sorted(changes.environment.items())]
        parts.append("\n".join(lines) + "\n")
    parts += ["\n".join(SNIPPETS[patch.name](patch)) + "\n" for patch in changes.patches]
    body = "\n\n".join(parts)
    if not changes.patches and not changes.environment:
        body = "# None of the changes is set in the code.\n"
    return Emitted(path="tuned_snippet.py", text=commented(tuning) + body, notes=tuple(argument_notes(changes)))


def _dataloader(patch: Patch) -> Lines:
    return _function(
        "make_loader(dataset, **yours)",
        "# Your own keywords, with these replaced or added.",
        f"return torch.utils.data.DataLoader(dataset, **(yours | dict({keywords(patch.parameters)})))",
    )


def _loader_batch(patch: Patch) -> Lines:
    return _function(
        "make_loader_of_batches(dataset, **yours)",
        "# Your own keywords, with the size of the batch replaced.",
        f"return torch.utils.data.DataLoader(dataset, **(yours | dict(batch_size={patch.parameters['size']})))",
    )


def _balanced_batches(patch: Patch) -> Lines:
    budget = patch.parameters.get("max_tokens")
    size = (
        "batch_size" if budget is None else f"max({budget} // max(lengths[i] for i in order[at : at + batch_size]), 1)"
    )
    return _function(
        "balanced(order, lengths, batch_size)",
        "# Batches of the epoch's order, sorted by length within 50 batches. Shuffle them, and give each rank as many.",
        "pool = 50 * batch_size",
        "pools = [order[at : at + pool] for at in range(0, len(order), pool)]",
        "order = [i for one in pools for i in sorted(one, key=lengths.__getitem__)]",
        "at = 0",
        "while at < len(order):",
        f"    size = {size}",
        "    yield order[at : at + size]",
        "    at += size",
    )


def _work_share(patch: Patch) -> Lines:
    slow, percent = patch.parameters["rank"], patch.parameters["percent"]
    return _function(
        "share(order, batch_size, rank, ranks)",
        f"# Uneven batches of the epoch's order, of all ranks: rank {slow} gets {percent} % of its samples.",
        f"fewer = max(batch_size * {percent} // 100, 1)",
        "more, left = divmod(batch_size - fewer, ranks - 1)",
        "sizes = [batch_size + more + (number < left) for number in range(ranks - 1)]",
        f"sizes.insert({slow}, fewer)",
        "begin = sum(sizes[:rank])",
        "for at in range(0, len(order) - sum(sizes) + 1, sum(sizes)):",
        "    yield order[at + begin : at + begin + sizes[rank]]",
    )


def _non_blocking(patch: Patch) -> Lines:
    del patch
    return _function(
        "to_device(batch, device)",
        "# Only from pinned memory to the device; never the other way.",
        "return batch.to(device, non_blocking=True)",
    )


def _nccl_options(patch: Patch) -> Lines:
    return _function(
        "nccl_options()",
        "# For init_process_group and new_group: pg_options=nccl_options(). NCCL takes the two values only together.",
        "options = torch.distributed.ProcessGroupNCCL.Options()",
        *[f"options.config.{name} = {number}" for name, number in patch.parameters.items()],
        "return options",
    )


def _local_sgd(patch: Patch) -> Lines:
    how = "DiLoCo" if patch.parameters.get("outer") else "the mean of the weights"
    return [f"# {how} every {patch.parameters['every']} steps: torch has no switch for it; use `flatout run`."]


def _fsdp2(patch: Patch) -> Lines:
    parameters = dict(patch.parameters)
    forward, backward = parameters.pop("forward_prefetch", 0), parameters.pop("backward_prefetch", 0)
    ranks = parameters.pop("ranks_per_copy", None)
    hybrid = []
    if ranks is not None:
        hybrid = [
            "from torch.distributed.device_mesh import init_device_mesh",
            f"shape = (torch.distributed.get_world_size() // {ranks}, {ranks})",
            "tuned['mesh'] = init_device_mesh('cuda', shape, mesh_dim_names=('replicate', 'shard'))",
        ]
    return _function(
        "shard(model, layers, **yours)",
        "from torch.distributed.fsdp import fully_shard",
        "",
        f"tuned = dict({keywords(parameters)})",
        *hybrid,
        "for layer in (*layers, model):",
        "    fully_shard(layer, **(yours | tuned))",
        "for place, layer in enumerate(layers):",
        f"    if ahead := layers[place + 1 : place + 1 + {forward}]:",
        "        layer.set_modules_to_forward_prefetch(list(ahead))",
        f"    if behind := layers[max(place - {backward}, 0) : place][::-1]:",
        "        layer.set_modules_to_backward_prefetch(list(behind))",
        "return model",
    )


def _fsdp2_no_sync(patch: Patch) -> Lines:
    return _function(
        "accumulate(fsdp_model, batches, loss_of)",
        f"# One step of {patch.parameters['passes']} passes: gradients are reduced in the last pass only.",
        "for number, batch in enumerate(batches, 1):",
        "    fsdp_model.set_requires_gradient_sync(number == len(batches))",
        "    loss_of(fsdp_model, batch).backward()",
    )


def _optimizer(patch: Patch) -> Lines:
    return _function(
        "make_optimizer(optimizer_class, parameters, **yours)",
        "yours = {name: value for name, value in yours.items() if name not in ('fused', 'foreach')}",
        f"return optimizer_class(parameters, **yours, {keywords(patch.parameters)})",
    )


def _zero_grad(patch: Patch) -> Lines:
    del patch
    return _function("zero_gradients(optimizer)", "optimizer.zero_grad(set_to_none=True)")


def _cudnn_benchmark(patch: Patch) -> Lines:
    del patch
    return ["torch.backends.cudnn.benchmark = True"]


def _channels_last(patch: Patch) -> Lines:
    del patch
    return _function(
        "to_channels_last(model_or_images)",
        "# The model once, and each batch of images (4 dimensions).",
        "return model_or_images.to(memory_format=torch.channels_last)",
    )


def _tf32(patch: Patch) -> Lines:
    del patch
    return ['torch.set_float32_matmul_precision("high")', "torch.backends.cudnn.allow_tf32 = True"]


def _autocast(patch: Patch) -> Lines:
    if patch.parameters["dtype"] == "float16":
        return _function(
            "train_step(model, batch, loss_of, optimizer, scaler)",
            "# scaler = torch.amp.GradScaler(), made once; save its state_dict() in your checkpoints.",
            'with torch.autocast("cuda", dtype=torch.float16):',
            "    loss = loss_of(model, batch)",
            "scaler.scale(loss).backward()",
            "scaler.unscale_(optimizer)  # before clipping",
            "scaler.step(optimizer)",
            "scaler.update()",
        )
    return _function(
        "loss_in_lower_precision(model, batch, loss_of)",
        "# Around the forward and the loss; backward() stays outside.",
        f'with torch.autocast("cuda", dtype=torch.{patch.parameters["dtype"]}):',
        "    return loss_of(model, batch)",
    )


def _compile(patch: Patch) -> Lines:
    return _function(
        "compiled(model)",
        "# Before DistributedDataParallel is put around it.",
        f"model.compile(mode={patch.parameters['mode']!r})",
        "return model",
    )


def _num_threads(patch: Patch) -> Lines:
    return [f"torch.set_num_threads({patch.parameters['count']!r})  # in place of the script's own number"]


def _onnx_session(patch: Patch) -> Lines:
    body = ["import onnxruntime", "", "options = options or onnxruntime.SessionOptions()"]
    if "threads" in patch.parameters:
        body.append(f"options.intra_op_num_threads = {patch.parameters['threads']!r}")
    if "spinning" in patch.parameters:
        body.append('options.add_session_config_entry("session.intra_op.allow_spinning", "0")')
    if "optimize" in patch.parameters:
        body.append("options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL")
    if "provider" in patch.parameters:
        kinds = {"cuda": "CUDA", "tensorrt": "Tensorrt", "openvino": "OpenVINO"}
        first = f"{kinds[str(patch.parameters['provider'])]}ExecutionProvider"
        body.append(f'yours["providers"] = ["{first}", "CPUExecutionProvider"]')
    return _function(
        "make_session(path, options=None, **yours)",
        *body,
        "return onnxruntime.InferenceSession(path, options, **yours)",
    )


def _kv_cache(patch: Patch) -> Lines:
    static = ', cache_implementation="static"' if patch.parameters.get("static") else ""
    return _function(
        "generate(model, inputs, **yours)",
        f"return model.generate(inputs, **(yours | dict(use_cache=True{static})))",
    )


def _fused_attention(patch: Patch) -> Lines:
    return _function(
        "load(auto_class, name, **yours)",
        f"return auto_class.from_pretrained(name, **yours, attn_implementation={patch.parameters['implementation']!r})",
    )


def _activation_checkpointing(patch: Patch) -> Lines:
    return _function(
        "run_blocks(blocks, hidden)",
        "from torch.utils.checkpoint import checkpoint",
        "",
        "for number, block in enumerate(blocks):",
        f"    if number % {patch.parameters['every']} == 0:",
        "        hidden = checkpoint(block, hidden, use_reentrant=False)",
        "    else:",
        "        hidden = block(hidden)",
        "return hidden",
    )


def _keep_cache(patch: Patch) -> Lines:
    del patch
    return ["# Remove torch.cuda.empty_cache() from the training loop."]


def _background_checkpoint(patch: Patch) -> Lines:
    del patch
    return _function(
        "save_in_background(state, checkpoint_id)",
        "# Returns at once after the copy to the host: wait for the last one with .result() before the job ends.",
        "from torch.distributed.checkpoint import async_save",
        "",
        "return async_save(state, checkpoint_id=checkpoint_id)",
    )


def _garbage_collection(patch: Patch) -> Lines:
    after, every = patch.parameters["after"], patch.parameters.get("every", 0)
    heading = ("step_ended(step)", "# After each step, on every rank; steps count from 1.", "import gc", "")
    first = f"if step == {after}:"
    match patch.parameters["how"]:
        case "freeze":
            return _function(*heading, first, "    gc.collect()", "    gc.freeze()")
        case "off":
            return _function(*heading, first, "    gc.disable()", "    gc.collect()")
        case _:
            return _function(
                *heading,
                first,
                "    gc.disable()",
                "    gc.collect()",
                f"elif step > {after} and step % {every} == 0:",
                f"    gc.collect(2 if step % (10 * {every}) == 0 else 1)",
            )


def _bind_cores(patch: Patch) -> Lines:
    if patch.parameters["by"] == "numa":
        return ["# Bind by NUMA node: torchrun --numa-binding=node (torch 2.9 and later)."]
    return _function(
        "bind_to_cores()",
        "# At the start of each rank, before threads are made.",
        'rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])',
        "cores = sorted(os.sched_getaffinity(0))",
        "share = len(cores) // ranks",
        "os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])",
    )


SNIPPETS: Mapping[str, Callable[[Patch], Lines]] = {
    "dataloader": _dataloader,
    "loader_batch": _loader_batch,
    "balanced_batches": _balanced_batches,
    "work_share": _work_share,
    "non_blocking_copies": _non_blocking,
    "ddp": ddp_snippets.ddp,
    "ddp_no_sync": ddp_snippets.ddp_no_sync,
    "ddp_hook": ddp_snippets.ddp_hook,
    "local_sgd": _local_sgd,
    "nccl_options": _nccl_options,
    "fsdp2": _fsdp2,
    "fsdp2_no_sync": _fsdp2_no_sync,
    "optimizer": _optimizer,
    "zero_grad_to_none": _zero_grad,
    "cudnn_benchmark": _cudnn_benchmark,
    "channels_last": _channels_last,
    "tf32": _tf32,
    "autocast": _autocast,
    "fp8": package_snippets.fp8,
    "liger_kernels": package_snippets.liger_kernels,
    "xformers_attention": package_snippets.xformers_attention,
    "lamb": package_snippets.lamb,
    "optimizer_8bit": package_snippets.optimizer_8bit,
    "compile": _compile,
    "fused_attention": _fused_attention,
    "kv_cache": _kv_cache,
    "onnx_session": _onnx_session,
    "onnx_export": package_snippets.onnx_export,
    "num_threads": _num_threads,
    "activation_checkpointing": _activation_checkpointing,
    "keep_cache": _keep_cache,
    "background_checkpoint": _background_checkpoint,
    "garbage_collection": _garbage_collection,
    "bind_cores": _bind_cores,
}
