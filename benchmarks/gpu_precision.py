"""Lower precision and other kernels in the training of a GPT on one GPU: are they in effect, how fast, which loss?

    python benchmarks/gpu_precision.py [--wheels FOLDER] [--steps 40] [--out FILE] [CASE ..]

Needs torch and this checkout. `--wheels` holds wheels of torchao, bitsandbytes, liger_kernel or xformers, which are
unpacked into a temporary folder; a case whose package is missing says so in one line. The job is a script as users
write them, in bf16 autocast (fp32 for `fp16`), on one batch of random tokens that it learns by heart. A case is started
between two starts of its baseline (shared by cases of one job), and prints what the patch reported, its speed over the
mean of the two, peak memory, and the losses at the end. `fp8+compile` compiles three times and is run only by name.
Exits with 1 where a patch that could act did not, or a loss is not finite.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

STARTUP = Path(__file__).resolve().parents[1] / "src" / "flatout" / "inside" / "startup"
# case -> (patches, arguments of the job, package that it needs)
CASES: dict[str, tuple[list[tuple[str, dict[str, Any]]], list[str], str]] = {
    "fp16": ([("autocast", {"dtype": "float16"})], ["--precision=fp32"], ""),
    "fp8": ([("fp8", {"library": "torchao"})], [], "torchao"),
    "fp8+compile": (
        [("fp8", {"library": "torchao"}), ("compile", {"mode": "default"})],
        ["--baseline-compile"],
        "torchao",
    ),
    "8bit-bitsandbytes": ([("optimizer_8bit", {"library": "bitsandbytes"})], [], "bitsandbytes"),
    "8bit-torchao": ([("optimizer_8bit", {"library": "torchao"})], [], "torchao"),
    "lamb": ([("lamb", {})], [], ""),
    "liger": ([("liger_kernels", {})], ["--model=llama"], "liger_kernel"),
    "xformers": ([("xformers_attention", {})], [], "xformers"),
}


def job(arguments: argparse.Namespace) -> None:
    """Train a GPT, or a Llama of transformers, and print one line of JSON."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width, layers, heads, vocab, length, batch = 2048, 8, 16, 32_000, 1024, 8

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, tokens, _ = x.shape
            q, k, v = self.qkv(self.first(x)).view(rows, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.blocks = nn.Embedding(vocab, width), nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, vocab)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.table(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    if arguments.model == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=heads, vocab_size=vocab,
        )  # fmt: skip
        model: Any = LlamaForCausalLM(config).cuda()
    else:
        model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, vocab, (batch, length), device="cuda")
    is_low = arguments.precision == "bf16"
    losses = []
    begun = time.perf_counter()
    for step in range(arguments.steps):
        if step == arguments.steps // 2:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_low):
            if arguments.model == "llama":
                loss = model(input_ids=tokens, labels=tokens).loss
            else:
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begun) / (arguments.steps - arguments.steps // 2)
    peak = torch.cuda.max_memory_allocated()
    shown = {"step_s": seconds, "peak_bytes": peak, "losses": [float(one) for one in losses]}
    print(json.dumps(shown), flush=True)


def started(patches: list[tuple[str, dict[str, Any]]], words: list[str], packages: str, steps: int) -> dict[str, Any]:
    """Run the job once, and return what it printed and what its patches reported."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PYTHONPATH=f"{STARTUP}:{packages}", FLATOUT_REPORTS=folder)
        if patches:
            listed = [{"name": name, "parameters": parameters} for name, parameters in patches]
            environment["FLATOUT_PATCHES"] = json.dumps(listed)
        command = [sys.executable, __file__, "--job", f"--steps={steps}", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
        reports = {}
        for file in Path(folder).glob("patches-*.jsonl"):
            for line in file.read_text().splitlines():
                report = json.loads(line)
                reports[report["patch"]] = {key: report[key] for key in ("applied", "reason", "details", "notes")}
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-3:], "reports": reports}
        return {**json.loads(done.stdout.strip().splitlines()[-1]), "reports": reports}


def unpacked(wheels: Path | None, folder: Path) -> str:
    for wheel in sorted(wheels.glob("*.whl")) if wheels else []:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return str(folder)


def case_result(name: str, packages: str, steps: int, baselines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    patches, words, package = CASES[name]
    if package and not (Path(packages) / package).is_dir():
        return {"case": name, "skipped": f"no wheel of {package}"}
    own = [word for word in words if not word.startswith("--baseline")]
    of_baseline = [("compile", {"mode": "default"})] if "--baseline-compile" in words else []
    key = " ".join(own) + str(bool(of_baseline))
    before = baselines.setdefault(key, [started(of_baseline, own, packages, steps)])
    tuned = started(patches, own, packages, steps)
    if len(before) == 1:
        before.append(started(of_baseline, own, packages, steps))
    if "error" in tuned or any("error" in each for each in before):
        return {"case": name, "tuned": tuned, "baselines": before, "is_wrong": True}
    mean_s = sum(each["step_s"] for each in before) / len(before)
    return {
        "case": name,
        "reports": tuned["reports"],
        "speedup": mean_s / tuned["step_s"],
        "baseline_ms": [each["step_s"] * 1e3 for each in before],
        "tuned_ms": tuned["step_s"] * 1e3,
        "peak_gib": [before[0]["peak_bytes"] / 2**30, tuned["peak_bytes"] / 2**30],
        "last_losses": [before[0]["losses"][-1], before[1]["losses"][-1], tuned["losses"][-1]],
        "is_wrong": not math.isfinite(tuned["losses"][-1])
        or not all(tuned["reports"].get(patch, {}).get("applied") for patch, _ in patches),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", action="store_true")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--model", default="gpt")
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments)
        return 0
    results, baselines = [], {}
    with tempfile.TemporaryDirectory() as folder:
        packages = unpacked(arguments.wheels, Path(folder))
        for name in arguments.cases or [name for name in CASES if "compile" not in name]:
            result = case_result(name, packages, arguments.steps, baselines)
            results.append(result)
            print(json.dumps(result), flush=True)
            if arguments.out is not None:
                arguments.out.write_text(json.dumps({"steps": arguments.steps, "cases": results}, indent=1) + "\n")
    return 1 if any(result.get("is_wrong") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
