"""Scripts that only infer, rebuilt small from public reports: `python inference_jobs.py JOB CALLS`.

short-operators   mozilla/TTS issue 194: many small operators, for which several threads are too many
preprocessing     pytorch-YOLOv4 issue 309, pytorch issue 24142: torch resizes images between calls of a small model
no-kv-cache       transformer-deploy issue 49: GPT-2 generates without a cache of keys and values
one-thread        DiffBIR issue 130: the script computes on one thread
pool              several threads call the model
linear            a stack of linear layers at batch 256, for bf16, compilers and threads
onnx              onnxruntime issue 19384: ONNX Runtime with more threads than the container has cores
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    """A recurrent decoder that makes one frame after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(256, 512), nn.GRUCell(512, 512)
        self.frame, self.back = nn.Linear(512, 80), nn.Linear(80, 256)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        state = other = torch.zeros(len(frame), 512)
        frames = []
        for _ in range(20):
            state = self.first(torch.relu(self.back(frame)), state)
            other = self.second(state, other)
            frame = self.frame(other)
            frames.append(frame)
        return torch.stack(frames, 1)


def short_operators(calls: int) -> None:
    model, frame = Decoder().eval(), torch.randn(1, 80)
    with torch.inference_mode():
        for _ in range(calls):
            model(frame)


def preprocessing(calls: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    frames = torch.randint(0, 256, (4, 1080, 1920, 3), dtype=torch.uint8)
    with torch.no_grad():
        for number in range(calls):
            image = frames[number % 4].permute(2, 0, 1)[None].float() / 255
            model(functional.interpolate(image, size=(416, 416), mode="bicubic", antialias=True))


def no_kv_cache(calls: int) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=4, vocab_size=1000, n_positions=512, eos_token_id=None, bos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    prompt = torch.randint(0, 1000, (1, 64))
    for _ in range(calls // 60):
        model.generate(prompt, max_new_tokens=60, do_sample=False, use_cache=False, pad_token_id=0)


def one_thread(calls: int) -> None:
    torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    model, image = nn.Sequential(*layers, nn.Conv2d(64, 3, 3, padding=1)).eval(), torch.randn(1, 3, 128, 128)
    with torch.no_grad():
        for _ in range(calls):
            model(image)


def pool(calls: int) -> None:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).eval()

    def call(number: int) -> None:
        with torch.inference_mode():
            model(torch.full((8, 512), float(number % 7)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(call, range(calls)))


def linear(calls: int) -> None:
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model, batch = nn.Sequential(*layers).eval(), torch.randn(256, 1024)
    with torch.inference_mode():
        for _ in range(calls):
            model(batch)


def onnx(calls: int) -> None:
    import onnxruntime
    from small_onnx_model import write_model

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 8
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_model(path, width=512, layers=8)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    batch = torch.randn(32, 512).numpy()
    for _ in range(calls):
        session.run(None, {"x": batch})


JOBS: dict[str, Callable[[int], None]] = {
    "short-operators": short_operators,
    "preprocessing": preprocessing,
    "no-kv-cache": no_kv_cache,
    "one-thread": one_thread,
    "pool": pool,
    "linear": linear,
    "onnx": onnx,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    JOBS[sys.argv[1]](int(sys.argv[2]))
