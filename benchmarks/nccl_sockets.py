"""How fast a GPT-2 trains and all-reduces on the GPUs of one host over TCP, by NCCL's settings for sockets.

    python benchmarks/nccl_sockets.py NANOGPT [--ranks 2] [--out FILE] [SETTING...]

NANOGPT is a checkout of karpathy/nanoGPT: its model (124 M) in DDP, batches of 8 x 1024, bf16 autocast, fused AdamW,
and 16 steps with the GPU waited for after each, of which the last 11 count. Then six all-reduces of 28 MiB (a DDP
bucket) and of 154 MiB (the tied embedding's), fp32; the bus bandwidth is 2 (n - 1) / n of the bytes a second, as
nccl-tests defines it. A SETTING is `default` or threads x sockets a thread + channels, as in `nccl-sockets=2x2+8`. Each
runs in processes of its own, once, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = ("default", "2x2+8", "1x1+8", "1x1+16", "1x2+8", "2x1+8", "4x1+4", "2x4+8", "1x8+8", "1x1+32", "default")
OVER_TCP = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
NUM_STEPS, NUM_WARMUP, NUM_REDUCTIONS = 16, 5, 6
SIZES_MIB = (28, 154)
LIMIT_S = 60
MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nanogpt", type=Path)
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    sys.path.insert(0, str(given.nanogpt))
    import model  # noqa: F401 - once, before the ranks are forked: it imports torch

    rows = []
    for number, setting in enumerate(given.settings):
        row = measured(setting, given.ranks, 29600 + number)
        print(json.dumps(row), flush=True)
        rows.append(row)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def measured(setting: str, num_ranks: int, port: int) -> dict[str, Any]:
    """What rank 0 found, or only the setting where a rank failed."""
    read, write = os.pipe()
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            os.close(read)
            code = 1
            try:
                signal.alarm(LIMIT_S)
                os.environ.update(OVER_TCP | variables(setting))
                found = train(rank, num_ranks, port)
                if not rank:
                    os.write(write, json.dumps(found).encode())
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    return {"setting": setting, "ranks": num_ranks, **(json.loads(text) if text and not failed else {"failed": True})}


def variables(setting: str) -> dict[str, str]:
    if setting == "default":
        return {}
    sockets, channels = setting.split("+")
    threads, each = sockets.split("x")
    return {"NCCL_SOCKET_NTHREADS": threads, "NCCL_NSOCKS_PERTHREAD": each, "NCCL_MIN_NCHANNELS": channels}


def train(rank: int, num_ranks: int, port: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from model import GPT, GPTConfig

    torch.set_num_threads(1)
    torch.cuda.set_device(rank)
    place = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": num_ranks}
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **place)
    with torch.device("cuda"):
        shape = {"block_size": 1024, "vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768}
        gpt = GPT(GPTConfig(**shape, dropout=0.0, bias=False))
        tokens, targets = (torch.randint(0, shape["vocab_size"], (8, 1024)) for _ in range(2))
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-4, fused=True)
    ddp = torch.nn.parallel.DistributedDataParallel(gpt, device_ids=[rank])
    times = []
    for _ in range(NUM_STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            _, loss = ddp(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    settled = times[NUM_WARMUP:]
    found: dict[str, Any] = {
        "step_ms": {"median": 1e3 * statistics.median(settled), "low": 1e3 * min(settled), "high": 1e3 * max(settled)}
    }
    for size in SIZES_MIB:
        values = torch.zeros(size * MIB // 4, device="cuda")
        for _ in range(2):
            dist.all_reduce(values)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(NUM_REDUCTIONS):
            dist.all_reduce(values)
        torch.cuda.synchronize()
        num_bytes = NUM_REDUCTIONS * size * MIB * 2 * (num_ranks - 1) / num_ranks
        found[f"busbw_gb_per_s_{size}_mib"] = num_bytes / (time.perf_counter() - began) / 1e9
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    sys.exit(main())
