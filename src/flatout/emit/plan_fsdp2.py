"""Write a Python file that applies the layout with torch's FSDP2 (`fully_shard`), and runs unchanged on a tiny model.

Names: torch 2.13, `torch/distributed/fsdp/_fully_shard`. `main()` trains a model with the module names of
Hugging Face's Llama, so that errors in the mesh show before the real model is used.
"""

from __future__ import annotations

from flatout.emit.plan_heading import commented, num_nodes, torchrun_words
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "torch 2.13 (FSDP2)"

_TEMPLATE = '''\
"""`parallelize(model, layers, mesh)` for your own script; `main()` tries it on a tiny model.

    @@LAUNCH@@ fsdp2_plan.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

DP, TP = @@DP@@, @@TP@@
SHARD = @@SHARD@@  # DP ranks that shard the states; groups of this size are replicas of each other (HSDP)
ZERO = @@ZERO@@  # 0: replicated (DDP); 1, 2: parameters stay gathered after forward; 3: they are freed meanwhile
MICRO_BATCH, NUM_MICRO_BATCHES, SEQ = @@MICRO@@, @@NUM_MICRO@@, @@SEQ@@
RECOMPUTES = @@RECOMPUTES@@
DTYPE = torch.@@DTYPE@@
REDUCE_DTYPE = torch.@@REDUCE@@  # gradients are reduced in it
WEIGHT_DTYPE = torch.@@WEIGHT@@  # weights and moments are kept in it
# For one layer, with the module names of Hugging Face's Llama.
TP_PLAN = {
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def make_mesh(device: str) -> DeviceMesh:
    world = dist.get_world_size()
    if world != DP * TP:
        raise SystemExit(f"dp * tp must equal the number of ranks, but {DP} * {TP} = {DP * TP} and there are {world}")
    return init_device_mesh(device, (DP // SHARD, SHARD, TP), mesh_dim_names=("replicate", "shard", "tp"))


def parallelize(model: nn.Module, layers: nn.ModuleList, mesh: DeviceMesh) -> nn.Module:
    """Apply tensor parallelism, recomputation and sharding; `layers` are the model's transformer layers."""
    for index, layer in enumerate(layers):
        if TP > 1:
            parallelize_module(layer, mesh["tp"], TP_PLAN)
        if RECOMPUTES:
            layers[index] = checkpoint_wrapper(layer)
    if ZERO == 0 and TP == 1:
        return DistributedDataParallel(model)
    policy = MixedPrecisionPolicy(param_dtype=DTYPE, reduce_dtype=REDUCE_DTYPE)
    options = {
        "mesh": mesh["replicate", "shard"] if SHARD < DP else mesh["shard"],
        "mp_policy": policy,
        "reshard_after_forward": ZERO == 3,
    }
    for layer in layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]) -> torch.Tensor:
    """Make one optimizer step over the micro-batches, each (sequences, tokens + 1)."""
    total = torch.zeros((), device=batches[0].device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = is_last
        elif ZERO < 2:  # gradients are summed unsharded, and parameters are gathered once per step
            model.set_requires_gradient_sync(is_last)
            model.set_reshard_after_backward(is_last)
        with torch.autocast(batch.device.type, DTYPE, enabled=DTYPE != torch.float32):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten()) / len(batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


class Attention(nn.Module):
    def __init__(self, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], -1, self.head_dim)  # -1: the heads of this rank
        q, k, v = (proj(x).view(shape).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        scores = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(scores.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, hidden: int, head_dim: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.self_attn, self.mlp = Attention(hidden, head_dim), Mlp(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class TinyModel(nn.Module):
    def __init__(self, vocab: int = 64, hidden: int = 16 * TP, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(hidden, 8) for _ in range(num_layers))
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = make_mesh(device)
    torch.manual_seed(0)
    model = TinyModel().to(device, WEIGHT_DTYPE)
    model = parallelize(model, model.layers, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank() // TP)  # ranks of one tensor-parallel group read the same
    batch = torch.randint(0, 64, (min(MICRO_BATCH, 4), 17), device=device)
    for number in range(4):
        loss = step(model, optimizer, [batch] * min(NUM_MICRO_BATCHES, 4))
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {number}: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    layout = job.layout
    notes = unexpressed(job)
    values = {
        "LAUNCH": " ".join(torchrun_words(job)).replace('"', ""),
        "DP": layout.dp,
        "TP": layout.tp,
        "SHARD": layout.shard or layout.dp,
        "ZERO": layout.zero,
        "MICRO": layout.micro_batch,
        "NUM_MICRO": layout.num_micro_batches,
        "SEQ": job.seq,
        "RECOMPUTES": layout.recompute == "full",
        "REDUCE": "bfloat16" if job.training.gradients == "bf16" else "float32",
        "WEIGHT": "bfloat16" if job.training.is_pure_bf16 else "float32",
        "DTYPE": {"fp32": "float32", "fp16": "float16"}.get(job.precision, "bfloat16"),
    }
    text = _TEMPLATE
    for name, value in values.items():
        text = text.replace(f"@@{name}@@", str(value))
    return (Emitted(path="fsdp2_plan.py", text=commented(job, TARGET, notes) + text, notes=notes),)


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the plan that belongs in the user's script."""
    notes = {
        f"{job.precision} needs torchao: this trains in bf16": job.precision in ("fp8", "fp4"),
        "fp16 needs a loss scaler (torch.amp.GradScaler), which is not in this file": job.precision == "fp16",
        "the tiny model does not measure speed: put your model into main()": num_nodes(job) > 1,
    }
    return tuple(note for note, applies in notes.items() if applies)
