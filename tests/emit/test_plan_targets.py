"""Emitted plans: every name is one that the target knows at the named version, and what cannot be run is refused.

The names were typed from the targets' own sources, which stand beside each list. These scripts were also given
to the parsers of those versions (Megatron-LM's `parse_args` and `validate_args`, torchtitan's `ConfigManager`,
DeepSpeed's `DeepSpeedConfig`), which took them.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.emit.test_targets import bash_words
from tests.plan.model_counts import configs

from flatout.catalog import all_models
from flatout.catalog.targets import facts_of_layout, runners, target_named
from flatout.emit import plan_deepspeed, plan_fsdp2, plan_megatron, plan_nemo, plan_torchtitan
from flatout.emit.plan_targets import PLAN_TARGETS, settings_for
from flatout.emit.write import write
from flatout.errors import InputError, OutputError
from flatout.plan.huggingface import from_values
from flatout.records.plan import FULL_TRAINING, ClusterSpec, Layout, Training
from flatout.records.plan_details import PlannedJob

DATA = Path(__file__).parents[1] / "data" / "frameworks"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def names_of(framework: str) -> frozenset[str]:
    """Return the framework's own names; a file's first lines say where and when they were read."""
    lines = (DATA / f"{framework}.txt").read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


MEGATRON = names_of("megatron")
TORCHTITAN = names_of("torchtitan")
# torch 2.13, torch/distributed/pipelining/schedules.py
SCHEDULES = words("1F1B GPipe Interleaved1F1B")
# DeepSpeed 0.19.8, main at edaa72212672 (2026-08-22), deepspeed/runtime: constants.py, config.py, zero/config.py,
# tensor_parallel/config.py, activation_checkpointing/config.py, precision_config.py; module_inject/auto_ep_config.py
DEEPSPEED = words(
    """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print zero_optimization
zero_optimization.stage zero_optimization.overlap_comm zero_optimization.contiguous_gradients
zero_optimization.reduce_scatter zero_optimization.offload_optimizer zero_optimization.mics_shard_size
expert_parallel expert_parallel.enabled expert_parallel.autoep_size
bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states data_types data_types.grad_accum_dtype
bf16 bf16.enabled fp16 fp16.enabled tensor_parallel tensor_parallel.autotp_size
pipeline
pipeline.stages pipeline.partition pipeline.activation_checkpoint_interval sequence_parallel_size
activation_checkpointing activation_checkpointing.partition_activations
"""
)
# PyPI nemo_toolkit 2.7.3: nemo/lightning/pytorch/strategies/megatron_strategy.py, and the recipes' own attributes;
# pipeline_model_parallel_layout is set by NeMo's scripts/performance/llm/pretrain_deepseek_v3.py
NEMO = words(
    """
strategy.tensor_model_parallel_size strategy.pipeline_model_parallel_size strategy.virtual_pipeline_model_parallel_size
strategy.context_parallel_size strategy.sequence_parallel strategy.expert_model_parallel_size
strategy.pipeline_model_parallel_layout
strategy.expert_tensor_parallel_size strategy.num_layers_in_last_pipeline_stage
strategy.account_for_embedding_in_pipeline_split strategy.account_for_loss_in_pipeline_split
recipe.model.config.recompute_modules strategy.fsdp strategy.save_ckpt_format
strategy.ddp.use_distributed_optimizer strategy.ddp.overlap_grad_reduce strategy.ddp.overlap_param_gather
strategy.ddp.data_parallel_sharding_strategy recipe.model.config.recompute_granularity
recipe.model.config.recompute_method recipe.model.config.recompute_num_layers recipe.model.config.seq_length
recipe.data.micro_batch_size recipe.data.global_batch_size recipe.data.seq_length recipe.trainer.max_steps
recipe.trainer.plugins recipe.trainer.plugins.grad_reduce_in_fp32 strategy.ddp.grad_reduce_in_fp32
strategy.num_distributed_optimizer_instances recipe.optim.config.optimizer_cpu_offload
recipe.optim.config.optimizer_offload_fraction recipe.optim.config.use_precision_aware_optimizer
"""
)
# The same, nemo/collections/llm/recipes/ (file names), and precision/mixed_precision.py
NEMO_RECIPES = words(
    """
gpt3_175b llama2_7b llama3_8b llama3_70b llama31_405b mixtral_8x7b mixtral_8x22b qwen2_7b qwen3_8b qwen3_30b_a3b
qwen3_235b_a22b gpt_oss_120b deepseek_v3
"""
)
NEMO_PRECISIONS = words("bf16_mixed fp16_mixed bf16_with_fp8_mixed")


def planned(
    model: str,
    layout: Layout,
    num_gpus: int,
    *,
    batch: int,
    seq: int = 4096,
    precision: str = "bf16",
    training: Training = FULL_TRAINING,
) -> PlannedJob:
    cluster = ClusterSpec(
        name="ours",
        gpu="H100 SXM 80GB",
        num_gpus=num_gpus,
        gpus_per_node=8,
        nvlink_domain=8,
        link_bytes_per_s=450e9,
        nic_bytes_per_s=50e9,
        memory_bytes=80 << 30,
        memory_bytes_per_s=3.35e12,
        peak_flops_per_s={"bf16": 989e12},
        num_sms=132,
    )
    return PlannedJob(
        workload=all_models()[model],
        cluster=cluster,
        layout=layout,
        global_batch=batch,
        seq=seq,
        precision=precision,
        training=training,
        step_time_s=1.5,
        step_time_interval_s=(1.1, 2.0),
        memory_bytes=50e9,
        out_of_memory_probability=0.02,
    )


JOBS = {
    "dense": planned(
        "llama3-70b",
        Layout(tp=4, sequence_parallel=True, pp=8, vpp=10, cp=2, dp=8, zero=1, num_micro_batches=128),
        512,
        batch=1024,
    ),
    "fsdp": planned("llama3-8b", Layout(dp=16, zero=3, micro_batch=2, num_micro_batches=2), 16, batch=64),
    "zero 2, fp8": planned(
        "llama3-8b", Layout(dp=16, zero=2, micro_batch=4, recompute="selective"), 16, batch=64, precision="fp8"
    ),
    "hsdp, offload": planned(
        "llama3-8b",
        Layout(tp=2, dp=16, zero=3, shard=4, offload=True, micro_batch=2, num_micro_batches=2),
        32,
        batch=64,
    ),
    "groups of zero 1": planned("llama3-8b", Layout(dp=32, zero=1, shard=8, micro_batch=2), 32, batch=64),
    "ddp": planned(
        "gpt3-1.3b",
        Layout(dp=8, micro_batch=4, num_micro_batches=2, recompute="full"),
        8,
        batch=64,
        seq=2048,
        precision="fp16",
    ),
    "zero-bubble": planned(
        "deepseek-v3",
        Layout(
            tp=2,
            sequence_parallel=True,
            pp=8,
            ep=16,
            dp=64,
            zero=1,
            num_micro_batches=64,
            recompute="full",
            schedule="zero-bubble",
        ),
        1024,
        batch=4096,
    ),
    "experts": planned(
        "mixtral-8x7b",
        Layout(tp=2, sequence_parallel=True, pp=4, vpp=4, ep=8, dp=8, zero=1, num_micro_batches=32),
        64,
        batch=256,
    ),
    "uneven gpipe": planned(
        "llama3.1-405b", Layout(tp=8, pp=8, dp=4, num_micro_batches=16, schedule="gpipe"), 256, batch=64
    ),
    "experts, fp4": planned(
        "qwen3-235b-a22b",
        Layout(tp=4, pp=2, ep=16, dp=32, zero=1, num_micro_batches=8),
        256,
        batch=256,
        precision="fp4",
    ),
    "chunks that count the ends": planned(
        "qwen3-235b-a22b",
        Layout(
            tp=2, sequence_parallel=True, pp=8, vpp=4, ep=32, dp=16, zero=1, num_micro_batches=64, recompute="selective"
        ),
        256,
        batch=1024,
    ),
    "latent attention, recomputed": planned(
        "deepseek-v3",
        Layout(pp=8, ep=32, dp=32, zero=1, num_micro_batches=16, recompute="selective"),
        256,
        batch=512,
    ),
    "chunks of 4 layers, and the last of 1": planned(
        "deepseek-v3",
        Layout(pp=4, vpp=4, ep=64, dp=64, zero=1, num_micro_batches=64),
        256,
        batch=4096,
    ),
    "1f1b": planned("llama2-7b", Layout(pp=4, dp=8, zero=1, num_micro_batches=8, recompute="full"), 32, batch=64),
    "gpipe": planned(
        "llama3-8b", Layout(pp=4, cp=2, dp=8, zero=3, num_micro_batches=8, schedule="gpipe"), 64, batch=64
    ),
    "tensor parallel alone": planned(
        "llama3-8b", Layout(tp=4, dp=4, zero=2, micro_batch=4, recompute="full"), 16, batch=16
    ),
    "Ulysses": planned("llama3-8b", Layout(cp=8, dp=2, zero=3, num_micro_batches=4), 16, batch=8, seq=65536),
    "groups of zero 3": planned("llama3-8b", Layout(dp=32, zero=3, shard=8, micro_batch=2), 32, batch=64),
    "experts, zero 3": planned("qwen3-30b-a3b", Layout(ep=8, dp=16, zero=3, num_micro_batches=2), 16, batch=32),
    "optimizer on the host": planned("llama3-8b", Layout(dp=8, zero=1, offload=True, num_micro_batches=2), 8, batch=16),
    "one replica on the host": planned("llama3-8b", Layout(tp=8, offload=True, num_micro_batches=2), 8, batch=2),
    "pure bf16": planned(
        "llama3-8b",
        Layout(dp=8, zero=3, num_micro_batches=2),
        8,
        batch=16,
        training=Training(gradients="bf16", is_pure_bf16=True),
    ),
    "bf16 gradients": planned(
        "llama3-8b", Layout(dp=8, zero=1, num_micro_batches=2), 8, batch=16, training=Training(gradients="bf16")
    ),
    "not causal, fp32": planned(
        "bert-large", Layout(dp=8, zero=1, micro_batch=8), 8, batch=64, seq=512, precision="fp32"
    ),
}


def can_run(target: str, job: PlannedJob) -> bool:
    return target in runners(job.layout, job.workload, job.precision, job.training)


def each_job_of(target: str) -> pytest.MarkDecorator:
    """Run a test with each of the jobs that the target can run; that the others are refused is tested separately."""
    names = [name for name, job in JOBS.items() if can_run(target, job)]
    assert len(names) >= 4, "enough to test the names of"
    return pytest.mark.parametrize("job", [JOBS[name] for name in names], ids=names)


EACH_TARGET_AND_JOB = pytest.mark.parametrize(
    ("target", "job"),
    [(target, job) for target in PLAN_TARGETS for job in JOBS.values() if can_run(target, job)],
    ids=[f"{target}, {name}" for target in PLAN_TARGETS for name, job in JOBS.items() if can_run(target, job)],
)


def arguments(script: str, launcher: str = "torchrun") -> list[str]:
    """What the shell gives to the program, with what the user must name."""
    given = "export HEAD_NODE=node0 MODULE=llama3 CONFIG=llama3_8b TRAIN=train.py\n"
    return bash_words(given + script, launcher)


@each_job_of("megatron")
def test_megatron_knows_every_argument_and_gets_the_plan(job: PlannedJob) -> None:
    (emitted,) = plan_megatron.emit(job)
    given = arguments(emitted.text)
    assert f"--nproc-per-node={min(8, job.cluster.num_gpus)}" in given
    given = given[next(at for at, word in enumerate(given) if word.endswith("pretrain_gpt.py")) + 1 :]
    modules = {word for word in given if not word.startswith("--")}
    assert modules <= {"layernorm", "moe_act", "mla_up_proj"}  # megatron/core/transformer/transformer_config.py
    assert bool(modules) == (job.layout.recompute == "selective")
    names = [word.removeprefix("--").split("=")[0] for word in given if word not in modules]
    assert sorted(set(names) - MEGATRON) == []
    assert len(set(names)) == len(names)
    values = dict(word.removeprefix("--").split("=", 1) for word in given if "=" in word)
    layout = job.layout
    assert int(values["tensor-model-parallel-size"]) == layout.tp
    assert int(values["pipeline-model-parallel-size"]) == layout.pp
    assert int(values.get("context-parallel-size", 1)) == layout.cp
    assert int(values.get("expert-model-parallel-size", 1)) == layout.ep
    chunks_per_stage = int(values.get("num-virtual-stages-per-pipeline-rank", 1))
    if "pipeline-model-parallel-layout" in values:
        chunks_per_stage = len(expanded(values["pipeline-model-parallel-layout"])) // layout.pp
    assert chunks_per_stage == layout.vpp
    assert int(values["micro-batch-size"]) == layout.micro_batch
    assert int(values["global-batch-size"]) == layout.micro_batch * layout.num_micro_batches * layout.dp
    assert ("use-distributed-optimizer" in names) == (layout.zero >= 1 or layout.offload)
    assert ("use-megatron-fsdp" in names) == (layout.zero >= 2)
    assert ("sequence-parallel" in names) == layout.sequence_parallel
    assert values.get("recompute-granularity", "none") == layout.recompute


def expanded(text: str) -> list[str]:
    """Return the chunks of a layout: `(X)*n` and `t*n` repeat, as docs/user-guide of Megatron-LM describes."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(\w)\*(\d+)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    return text.split("|")


def test_chunks_with_different_numbers_of_layers_are_written_one_by_one() -> None:
    """61 layers on 4 x 4 chunks, as in NVIDIA's recipe of DeepSeek-V3: the last one has a layer and the loss."""
    assert expanded("Et*3|(tt|)*29,m|L".replace(",", "")) == ["Ettt", *["tt"] * 29, "m", "L"]
    job = JOBS["chunks of 4 layers, and the last of 1"]
    (emitted,) = plan_megatron.emit(job)
    (text,) = [word.split("=")[1] for word in arguments(emitted.text) if "pipeline-model-parallel-layout" in word]
    assert expanded(text) == ["Etttt", *["tttt"] * 14, "tL"]
    assert plan_nemo.strategy(job)["pipeline_model_parallel_layout"] == text
    assert runners(job.layout, job.workload, "bf16") == ("megatron", "nemo")
    even = msgspec.structs.replace(job.layout, vpp=1, pp=61, dp=1, ep=1)
    assert "torchtitan" in runners(even, job.workload, "bf16")


def test_megatron_recomputes_the_modules_that_the_plan_counts() -> None:
    for name, modules in (
        ("latent attention, recomputed", ["layernorm", "moe_act", "mla_up_proj"]),
        ("chunks that count the ends", ["layernorm", "moe_act"]),
    ):
        (emitted,) = plan_megatron.emit(JOBS[name])
        given = arguments(emitted.text)
        place = given.index("--recompute-modules") + 1
        assert given[place : place + len(modules)] == modules
        assert given[place + len(modules)].startswith("--")
        assert plan_nemo.model(JOBS[name])["recompute_modules"] == modules


def test_chunks_count_the_embedding_and_the_logits_where_only_that_divides() -> None:
    """94 layers and two ends are 3 for each of 8 * 4 chunks; NVIDIA's recipe of Qwen 3 235B has this split."""
    counted, plain = JOBS["chunks that count the ends"], JOBS["latent attention, recomputed"]
    flags = {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"}
    for job, is_counted in ((counted, True), (plain, False)):
        (emitted,) = plan_megatron.emit(job)
        assert flags.issubset(arguments(emitted.text)) == is_counted
        assert plan_nemo.strategy(job).get("account_for_loss_in_pipeline_split", False) == is_counted
    options = plan_torchtitan.settings(counted)
    assert options["parallelism.pipeline_parallel_layers_per_stage"] == "3"
    assert options["parallelism.pipeline_parallel_first_stage_less_layers"] == "1"
    assert options["parallelism.pipeline_parallel_last_stage_less_layers"] == "1"


def test_megatron_is_given_the_shape_of_experts_and_latent_attention() -> None:
    (emitted,) = plan_megatron.emit(JOBS["zero-bubble"])
    given = arguments(emitted.text)
    assert {"--num-experts=256", "--moe-router-topk=8", "--moe-ffn-hidden-size=2048"} <= set(given)
    assert {"--multi-latent-attention", "--kv-lora-rank=512", "--q-lora-rank=1536", "--qk-pos-emb-head-dim=64"} <= set(
        given
    )
    assert "--moe-layer-freq=([0]*3+[1]*58)" in given
    assert "--decoder-last-pipeline-num-layers=5" in given


@each_job_of("torchtitan")
def test_torchtitan_knows_every_option_and_gets_the_plan(job: PlannedJob) -> None:
    (emitted,) = plan_torchtitan.emit(job)
    given = arguments(emitted.text)
    given = given[given.index("torchtitan.train") + 1 :]
    module, config = given[given.index("--module") + 1], given[given.index("--config") + 1]
    assert f"{module}/{config}" in TORCHTITAN
    assert given[-1] == f"activation-checkpoint:{job.layout.recompute}" and given[-1] in TORCHTITAN
    found = plan_torchtitan.settings(job)
    assert sorted(set(found) - TORCHTITAN) == []
    assert {word.removeprefix("--") for word in given if word.startswith("--")} == {*found, "module", "config"}
    tokens = int(found["training.num_tokens_per_microbatch_per_dp_rank"])
    assert tokens == job.layout.micro_batch * job.seq
    per_step = tokens * int(found.get("parallelism.num_pp_microbatches", 1)) * job.layout.dp
    accumulations, rest = divmod(int(found["training.num_tokens_per_train_step"]), per_step)
    assert rest == 0
    assert accumulations == (1 if job.layout.pp > 1 else job.layout.num_micro_batches)
    p = {name.removeprefix("parallelism."): value for name, value in found.items()}
    degrees = (
        "tensor_parallel",
        "pipeline_parallel",
        "context_parallel",
        "data_parallel_replicate",
        "data_parallel_shard",
    )
    product = 1
    for name in degrees:
        product *= int(p[f"{name}_degree"])
    assert product == job.cluster.num_gpus
    assert p.get("pipeline_parallel_schedule", "1F1B") in SCHEDULES
    if job.layout.pp > 1:
        stages = -(-job.workload.num_layers // int(p["pipeline_parallel_layers_per_stage"]))
        per_rank = 1 if p["pipeline_parallel_schedule"] in ("1F1B", "GPipe") else max(2, job.layout.vpp)
        assert stages == per_rank * job.layout.pp


@each_job_of("deepspeed")
def test_deepspeed_knows_every_key_and_gets_the_plan(job: PlannedJob) -> None:
    configuration, launch = plan_deepspeed.emit(job)
    found = json.loads(configuration.text)
    keys = [*found, *(f"{name}.{key}" for name, each in found.items() if isinstance(each, dict) for key in each)]
    assert sorted(set(keys) - DEEPSPEED) == []
    layout = job.layout
    per_step = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * layout.dp
    assert found["train_batch_size"] == job.global_batch == per_step
    assert found["zero_optimization"]["stage"] == max(layout.zero, int(layout.offload))
    given = arguments(launch.text, "deepspeed")
    assert given[-3:] == ["--deepspeed", "--deepspeed_config", "deepspeed_plan.json"]


@each_job_of("nemo")
def test_nemo_knows_every_attribute_and_gets_the_plan(job: PlannedJob) -> None:
    (emitted,) = plan_nemo.emit(job)
    tree = ast.parse(emitted.text)
    assigned = {
        ast.unparse(node.targets[0]): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
    }
    assert sorted(set(assigned) - NEMO) == []
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported <= {*NEMO_RECIPES, *NEMO_PRECISIONS, "YOUR_RECIPE"}
    assert ("YOUR_RECIPE" in imported) == any("no recipe" in note for note in emitted.notes)
    value = assigned["strategy.tensor_model_parallel_size"]
    assert isinstance(value, ast.Constant) and value.value == job.layout.tp


def test_types_of_gradients_and_weights_reach_the_frameworks() -> None:
    bf16_gradients, pure = JOBS["bf16 gradients"], JOBS["pure bf16"]
    assert "--grad-reduce-in-bf16" in arguments(plan_megatron.emit(bf16_gradients)[0].text)
    assert "recipe.trainer.plugins.grad_reduce_in_fp32 = False" in plan_nemo.emit(bf16_gradients)[0].text
    assert json.loads(plan_deepspeed.emit(bf16_gradients)[0].text)["data_types"] == {"grad_accum_dtype": "bf16"}
    assert "bfloat16" in arguments(plan_torchtitan.emit(pure)[0].text)
    in_bf16 = json.loads(plan_deepspeed.emit(pure)[0].text)["bf16"]
    assert in_bf16["bf16_master_weights_and_grads"] and in_bf16["bf16_optimizer_states"]
    assert "WEIGHT_DTYPE = torch.bfloat16" in plan_fsdp2.emit(pure)[0].text
    mixed = JOBS["fsdp"]
    for emitted in (plan_megatron.emit(mixed), plan_nemo.emit(mixed), plan_deepspeed.emit(mixed)):
        assert not re.search("grad_reduce_in|grad-reduce-in|data_types|bf16_master", emitted[0].text)
    assert "WEIGHT_DTYPE = torch.float32" in plan_fsdp2.emit(mixed)[0].text


def test_recipes_and_configs_are_ones_that_exist() -> None:
    assert set(plan_nemo.RECIPES.values()) <= NEMO_RECIPES
    assert set(plan_nemo.RECIPES) <= set(all_models())
    assert {f"{module}/{config}" for module, config in plan_torchtitan.MODELS.values()} <= TORCHTITAN
    assert set(plan_torchtitan.MODELS) <= set(all_models())


@EACH_TARGET_AND_JOB
def test_what_the_user_must_do_is_in_a_file_and_in_the_notes(target: str, job: PlannedJob) -> None:
    emitted = settings_for(target, job)
    notes = [note for each in emitted for note in each.notes]
    text = " ".join(each.text for each in emitted)
    for note in notes:
        assert f"# UP TO YOU: {note}" in text
    said = " ".join(notes)
    layout = job.layout
    if target == "deepspeed":
        assert ("pipeline stages" in said) == (layout.pp > 1)
        assert ("MiCS_Init" in said) == (layout.shard > 0)
    if target in ("torchtitan", "fsdp2", "deepspeed"):
        assert ("bf16" in said) == (job.precision in ("fp8", "fp4"))


@pytest.mark.parametrize("target", PLAN_TARGETS)
def test_a_layout_that_the_target_cannot_run_is_refused_with_its_limit(target: str) -> None:
    refused = [job for job in JOBS.values() if not can_run(target, job)]
    assert refused
    for job in refused:
        limit = target_named(target).broken_limit(
            facts_of_layout(job.layout, job.workload, job.precision, job.training)
        )
        assert limit is not None
        with pytest.raises(InputError) as caught:
            settings_for(target, job)
        assert limit.why in str(caught.value)
        assert caught.value.hint == f"plan for it: flatout plan --for {target}"


@EACH_TARGET_AND_JOB
def test_scripts_and_programs_can_be_read(target: str, job: PlannedJob) -> None:
    for each in PLAN_TARGETS[target](job):
        assert each.text.endswith("\n")
        if each.path.endswith(".sh"):
            subprocess.run(["bash", "-n"], input=each.text, text=True, check=True)
        elif each.path.endswith(".py"):
            compile(each.text, each.path, "exec")
            assert "@@" not in each.text
        else:
            json.loads(each.text)


@pytest.mark.parametrize("target", PLAN_TARGETS)
@pytest.mark.parametrize("training", [Training(lora_rank=8), Training(optimizer="muon"), Training(frozen=("vision",))])
def test_settings_for_adapters_or_another_optimizer_are_refused(target: str, training: Training) -> None:
    """The files would train the complete model with Adam."""
    job = planned("llama3-8b", Layout(dp=8, num_micro_batches=8), 8, batch=64)
    assert settings_for(target, job)
    with pytest.raises(InputError, match="train the complete model with Adam"):
        settings_for(target, msgspec.structs.replace(job, training=training))


def test_megatron_says_which_layers_its_arguments_do_not_build() -> None:
    job = planned("llama3-8b", Layout(dp=8, num_micro_batches=8), 8, batch=64)

    def notes_of(model: str) -> tuple[str, ...]:
        workload = from_values(Path(f"{model}.json"), configs()[model])
        return plan_megatron.unexpressed(msgspec.structs.replace(job, workload=workload))

    assert notes_of("llama-3.1-8b") == ()
    assert "layers with window, a vision tower" in notes_of("gemma-3-27b")[0]
    assert "layers with recurrence" in notes_of("jamba-1.5-mini")[0]


def test_megatron_gets_the_biases_and_norms_of_a_config() -> None:
    job = planned("llama3-8b", Layout(dp=8, num_micro_batches=8), 8, batch=64)

    def text_of(model: str) -> str:
        workload = from_values(Path(f"{model}.json"), configs()[model])
        return settings_for("megatron", msgspec.structs.replace(job, workload=workload))[0].text

    assert "--add-qkv-bias" in text_of("qwen2.5-7b")
    assert "--qk-layernorm" in text_of("qwen3-8b") and "--add-qkv-bias" not in text_of("qwen3-8b")
    assert "--position-embedding-type=learned_absolute" in text_of("gpt2-xl")
    assert "--multi-latent-attention" in text_of("deepseek-v3")


@pytest.mark.parametrize("target", PLAN_TARGETS)
def test_a_hostile_name_stays_in_its_comment(target: str) -> None:
    job = JOBS["fsdp"]
    hostile = msgspec.structs.replace(job.workload, name="x\nrm -rf /; $(id) `id` \"'")
    for each in PLAN_TARGETS[target](msgspec.structs.replace(job, workload=hostile)):
        lines = [line for line in each.text.splitlines() if "rm -rf" in line]
        assert all(line.startswith("#") for line in lines)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (emitted,) = plan_megatron.emit(JOBS["fsdp"])
    write(emitted, tmp_path)
    (tmp_path / emitted.path).write_text("mine")
    with pytest.raises(OutputError):
        write(emitted, tmp_path)
    assert (tmp_path / emitted.path).read_text() == "mine"


def test_several_nodes_need_a_first_one() -> None:
    (emitted,) = plan_megatron.emit(JOBS["dense"])
    done = subprocess.run(["bash", "-c", emitted.text], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HEAD_NODE" in done.stderr
    assert "--nnodes=64" in arguments(emitted.text)


@each_job_of("fsdp2")
def test_an_accumulation_of_fsdp2_fills_the_batch(job: PlannedJob) -> None:
    (emitted,) = plan_fsdp2.emit(job)
    numbers = {name: int(value) for name, value in re.findall(r"^(ZERO) = (\d)", emitted.text, re.MULTILINE)}
    dp, tp = map(int, re.search(r"^DP, TP = (\d+), (\d+)$", emitted.text, re.MULTILINE).groups())  # type: ignore[union-attr]
    assert dp * tp == job.cluster.num_gpus
    assert numbers["ZERO"] == job.layout.zero
    micro, num_micro, _ = map(
        int,
        re.search(r"^MICRO_BATCH, NUM_MICRO_BATCHES, SEQ = (\d+), (\d+), (\d+)$", emitted.text, re.MULTILINE).groups(),  # type: ignore[union-attr]
    )
    assert micro * num_micro * dp == job.global_batch


@EACH_TARGET_AND_JOB
def test_every_line_of_a_heading_is_a_comment(target: str, job: PlannedJob) -> None:
    for each in PLAN_TARGETS[target](job):
        if each.path.endswith(".json"):
            continue
        lines = each.text.splitlines()
        first = 1 if lines[0].startswith("#!") else 0
        assert lines[first].startswith("# Written by flatout")
        assert "Predicted, not measured" in each.text
