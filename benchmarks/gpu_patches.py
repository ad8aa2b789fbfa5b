"""Each patch on a tiny job on a GPU: did it take effect, and what became of the losses?

    python benchmarks/gpu_patches.py [PATCH ..]          one GPU; with two or more, DDP and FSDP2 over NCCL too

Needs torch and this checkout, nothing else. Prints a table: the patch, its report, the largest relative difference of
the losses to the job without it, and whether that is what its safety class allows. Exits with 1 where a patch did not
take effect, or an exact one changed the losses by more than rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STARTUP = Path(__file__).resolve().parents[1] / "src" / "flatout" / "inside" / "startup"
EXACT, ROUNDING = 2e-3, 0.3  # of the loss: other sums in another order; other precisions on a tiny model
# (patch, parameters, ranks, arguments of the job, tolerance)
CASES = [
    (
        "dataloader",
        {"num_workers": 2, "prefetch_factor": 4, "pin_memory": True, "persistent_workers": True},
        1,
        [],
        0.0,
    ),
    ("non_blocking_copies", {}, 1, ["--pin"], 0.0),
    ("optimizer", {"fused": True}, 1, [], EXACT),
    ("optimizer", {"foreach": True}, 1, ["--single-tensor"], EXACT),
    ("zero_grad_to_none", {}, 1, [], EXACT),
    ("cudnn_benchmark", {}, 1, [], EXACT),
    ("channels_last", {}, 1, [], EXACT),
    ("tf32", {}, 1, [], ROUNDING),
    ("autocast", {"dtype": "bfloat16"}, 1, [], ROUNDING),
    ("compile", {"mode": "default"}, 1, [], ROUNDING),
    ("compile", {"mode": "reduce-overhead"}, 1, [], ROUNDING),
    ("activation_checkpointing", {"every": 1}, 1, [], EXACT),
    ("keep_cache", {}, 1, ["--empty-cache"], EXACT),
    ("background_checkpoint", {}, 1, ["--save"], EXACT),
    ("ddp", {"bucket_cap_mb": 100, "gradient_as_bucket_view": True, "static_graph": True}, 2, ["--ddp"], EXACT),
    ("ddp_no_sync", {"passes": 3}, 2, ["--ddp", "--passes=3"], EXACT),
    ("ddp_hook", {"hook": "bf16"}, 2, ["--ddp"], ROUNDING),
    ("ddp_hook", {"hook": "powersgd", "rank": 2, "start": 2}, 2, ["--ddp"], ROUNDING),
    ("ddp_hook", {"hook": "topk", "percent": 10}, 2, ["--ddp"], ROUNDING),
    ("fsdp2", {"reshard_after_forward": False}, 2, ["--fsdp2"], EXACT),
    ("fsdp2", {"forward_prefetch": 2, "backward_prefetch": 2}, 2, ["--fsdp2"], EXACT),
    ("fsdp2_no_sync", {"passes": 3}, 2, ["--fsdp2", "--passes=3"], EXACT),
    ("compile", {"mode": "default"}, 2, ["--ddp"], ROUNDING),
    ("compile", {"mode": "default"}, 2, ["--fsdp2"], ROUNDING),
    ("bind_cores", {"by": "numa"}, 2, ["--ddp"], EXACT),  # says so where there is one node
    ("bind_cores", {"by": "exclusive"}, 2, ["--ddp"], EXACT),
]


def job(arguments: set[str]) -> None:
    """A convolution, blocks of linear layers, an AdamW."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.blocks = nn.ModuleList(Block(64) for _ in range(6))
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    is_distributed = bool(arguments & {"--ddp", "--fsdp2"})
    if is_distributed:
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Model().to(device)
    if "--ddp" in arguments:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    elif "--fsdp2" in arguments:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    given = {"foreach": False} if "--single-tensor" in arguments else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **given)
    generator = torch.Generator().manual_seed(rank)
    data = TensorDataset(
        torch.randn(640, 3, 16, 16, generator=generator), torch.randint(0, 10, (640,), generator=generator)
    )
    loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory="--pin" in arguments)
    passes = next((int(word.partition("=")[2]) for word in arguments if word.startswith("--passes=")), 1)
    losses, total, number = [], 0.0, 0
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device)) / passes
            loss.backward()
            total += loss.item()
            number += 1
            if number % passes == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                losses.append(total)
                total = 0.0
                if "--empty-cache" in arguments:
                    torch.cuda.empty_cache()
        if "--save" in arguments:
            path = os.path.join(os.environ["GPU_PATCHES_OUT"], "model.pt")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, path)
            if not all(torch.equal(state["model"][name], one) for name, one in torch.load(path)["model"].items()):
                raise SystemExit("the checkpoint differs from the state")
    if rank == 0:
        print("losses", *[float(one).hex() for one in losses], flush=True)
    if is_distributed:
        dist.destroy_process_group()


def run(ranks: int, arguments: list[str], patches: list[dict[str, object]]) -> tuple[list[float], list[dict], str]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
        environment |= {"PYTHONPATH": str(STARTUP), "FLATOUT_REPORTS": folder, "GPU_PATCHES_OUT": folder}
        environment["FLATOUT_PATCHES"] = json.dumps(patches)
        command = [sys.executable]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*command, __file__, "--job", *arguments], env=environment, capture_output=True, text=True, timeout=300
        )
        text = next((line for line in done.stdout.splitlines() if line.startswith("losses ")), "")
        reports = {}
        for file in Path(folder).glob("patches-*.jsonl"):
            for line in file.read_text().splitlines():
                report = json.loads(line)
                reports[report["rank"]] = report
        log = "".join(file.read_text() for file in Path(folder).glob("inside-*.log"))
        errors = (done.stderr[-1500:] if done.returncode else "") + log[-1500:]
        return [float.fromhex(word) for word in text.split()[1:]], list(reports.values()), errors


def main(chosen: list[str]) -> int:
    import torch

    num_gpus = torch.cuda.device_count()
    print(f"torch {torch.__version__}, {num_gpus} x {torch.cuda.get_device_name(0) if num_gpus else 'no GPU'}")
    baselines: dict[tuple[int, tuple[str, ...]], list[float]] = {}
    is_good = True
    for name, parameters, ranks, arguments, allowed in CASES:
        if (chosen and name not in chosen) or ranks > num_gpus:
            continue
        key = (ranks, tuple(arguments))
        if key not in baselines:
            baselines[key] = run(ranks, arguments, [])[0]
        before = baselines[key]
        losses, reports, errors = run(ranks, arguments, [{"name": name, "parameters": parameters}])
        is_applied = len(reports) == ranks and all(report["applied"] for report in reports)
        is_whole = len(losses) == len(before) > 0
        worst = max((abs(a - b) / abs(b) for a, b in zip(losses, before, strict=False)), default=float("nan"))
        is_allowed = is_whole and worst <= allowed
        is_good &= is_allowed and (is_applied or name == "bind_cores")
        details = reports[0]["details"] if reports else {}
        reason = (reports[0]["reason"] or "; ".join(reports[0]["notes"])) if reports else "no report"
        words = " ".join(f"{key}={value}" for key, value in parameters.items())
        print(
            f"{name:25} {words:72} {ranks} ranks  {'applied' if is_applied else 'NOT APPLIED':12} losses"
            f" {'equal' if worst == 0 else f'{worst:.1e}':8} {'ok' if is_allowed else 'WRONG':6} {details} {reason}",
            flush=True,
        )
        if errors:
            print(errors)
    return 0 if is_good else 1


if __name__ == "__main__":
    if "--job" in sys.argv:
        job(set(sys.argv[1:]))
    else:
        sys.exit(main(sys.argv[1:]))
