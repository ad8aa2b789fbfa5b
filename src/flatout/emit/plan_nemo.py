"""Write a NeMo-Run script that changes a recipe. Names: nemo_toolkit 2.7.3, `nemo/lightning/pytorch/strategies/
megatron_strategy.py` and `nemo/collections/llm/recipes/`; the last release with recipes for language models.
"""

from __future__ import annotations

from flatout.emit.plan_heading import commented, gpus_per_node, num_nodes
from flatout.emit.plan_megatron import pipeline_layout, recomputed_modules
from flatout.records.plan import counts_ends, has_own_split
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "NeMo 2.7.3 (nemo_toolkit)"
# Name in Flatout's catalogue -> module in nemo.collections.llm.recipes.
RECIPES = {
    "gpt3-175b": "gpt3_175b",
    "llama2-7b": "llama2_7b",
    "llama3-8b": "llama3_8b",
    "llama3-70b": "llama3_70b",
    "llama3.1-405b": "llama31_405b",
    "mixtral-8x7b": "mixtral_8x7b",
    "mixtral-8x22b": "mixtral_8x22b",
    "qwen2-7b": "qwen2_7b",
    "qwen3-8b": "qwen3_8b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
    "qwen3-235b-a22b": "qwen3_235b_a22b",
    "gpt-oss-120b": "gpt_oss_120b",
    "deepseek-v3": "deepseek_v3",
}
PRECISIONS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_mixed"}


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    imported = "from nemo.collections.llm.recipes import YOUR_RECIPE as base  # name the recipe of your model here"
    if recipe := RECIPES.get(job.workload.name):
        imported = f"from nemo.collections.llm.recipes import {recipe} as base"
    precision = PRECISIONS[job.precision]
    lines = [
        "import nemo_run as run",
        imported,
        f"from nemo.collections.llm.recipes.precision.mixed_precision import {precision}",
        "",
        f"recipe = base.pretrain_recipe(name='flatout_plan', num_nodes={num_nodes(job)}, "
        f"num_gpus_per_node={gpus_per_node(job)})",
        "strategy = recipe.trainer.strategy",
        *(f"strategy.{name} = {value!r}" for name, value in strategy(job).items()),
        *(f"strategy.ddp.{name} = {value!r}" for name, value in ddp(job).items()),
        *(f"recipe.model.config.{name} = {value!r}" for name, value in model(job).items()),
        *(f"recipe.optim.config.{name} = {value!r}" for name, value in optimizer(job).items()),
        f"recipe.data.micro_batch_size = {job.layout.micro_batch}",
        f"recipe.data.global_batch_size = {job.global_batch}",
        f"recipe.data.seq_length = {job.seq}",
        f"recipe.model.config.seq_length = {job.seq}",
        "recipe.trainer.max_steps = 20",
        f"recipe.trainer.plugins = {precision}()",
        *_plugin(job),
    ]
    executor = f"run.LocalExecutor(ntasks_per_node={gpus_per_node(job)}, launcher='torchrun')"
    lines += ["", "if __name__ == '__main__':"]
    if num_nodes(job) > 1:
        lines.append(f"    # {num_nodes(job)} nodes: put your run.SlurmExecutor(nodes={num_nodes(job)}, ...) here")
    lines.append(f"    run.run(recipe, executor={executor})")
    text = commented(job, TARGET, notes) + "\n".join(lines) + "\n"
    return (Emitted(path="nemo_plan.py", text=text, notes=notes),)


def _plugin(job: PlannedJob) -> tuple[str, ...]:
    """Return the settings of the precision's plugin, whose fields replace those of the same names in `ddp`."""
    return ("recipe.trainer.plugins.grad_reduce_in_fp32 = False",) if job.training.gradients == "bf16" else ()


def strategy(job: PlannedJob) -> dict[str, object]:
    """Return the arguments of `MegatronStrategy`."""
    layout, num_layers = job.layout, job.workload.num_layers
    arguments: dict[str, object] = {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.sequence_parallel,
    }
    if job.workload.num_experts:
        arguments |= {"expert_model_parallel_size": layout.ep, "expert_tensor_parallel_size": layout.etp}
    if has_own_split(num_layers, layout.pp, layout.vpp):
        arguments["pipeline_model_parallel_layout"] = pipeline_layout(job.workload, layout)
    if counts_ends(num_layers, layout.pp, layout.vpp):
        arguments["account_for_embedding_in_pipeline_split"] = True
        arguments["account_for_loss_in_pipeline_split"] = True
    if layout.pp > 1 and layout.vpp == 1 and num_layers % layout.pp:
        layers_per_stage = -(-num_layers // layout.pp)
        arguments["num_layers_in_last_pipeline_stage"] = num_layers - layers_per_stage * (layout.pp - 1)
    replicas = layout.dp * layout.cp
    if layout.zero and 0 < layout.shard < replicas:
        arguments["num_distributed_optimizer_instances"] = replicas // layout.shard
    if layout.zero >= 2:
        arguments |= {"fsdp": "megatron", "save_ckpt_format": "fsdp_dtensor"}
    return arguments


def ddp(job: PlannedJob) -> dict[str, object]:
    """Return the fields of Megatron's `DistributedDataParallelConfig`."""
    # Only the distributed optimizer is offloaded; a single replica has one with a single shard.
    zero = max(job.layout.zero, 1) if job.layout.offload else job.layout.zero
    fields: dict[str, object] = {
        "use_distributed_optimizer": zero >= 1,
        "overlap_grad_reduce": True,
        "overlap_param_gather": zero >= 1,
    }
    if job.training.gradients == "bf16":
        fields["grad_reduce_in_fp32"] = False
    if zero >= 2:
        fields["data_parallel_sharding_strategy"] = "optim_grads" if zero == 2 else "optim_grads_params"
    return fields


def optimizer(job: PlannedJob) -> dict[str, object]:
    """Return the fields of Megatron's `OptimizerConfig`."""
    if not job.layout.offload:
        return {}
    return {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0, "use_precision_aware_optimizer": True}


def model(job: PlannedJob) -> dict[str, object]:
    """Return the fields of Megatron's `TransformerConfig`."""
    if job.layout.recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if job.layout.recompute == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": list(recomputed_modules(job.workload)),
        }
    return {"recompute_granularity": None}


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the job that NeMo has no setting for."""
    notes = {
        f"NeMo 2.7.3 has no recipe for {job.workload.name}: name one of the same shape in the import": (
            job.workload.name not in RECIPES
        ),
    }
    return tuple(note for note, applies in notes.items() if applies)
