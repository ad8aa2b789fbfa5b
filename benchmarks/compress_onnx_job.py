"""Evaluate a model of Magika on files whose endings say what they are, or call it again and again.

    python compress_onnx_job.py eval MODEL.onnx config.min.json FOLDER
    python compress_onnx_job.py infer MODEL.onnx BATCH

The model reads 1,024 bytes from the beginning of a file without white space, and as many from its end.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

SIDE, BLOCK, PADDING = 1024, 4096, 256
MOST_FILES = 60  # of an ending
LABELS = {
    ".py": ("python",),
    ".pyi": ("python",),
    ".c": ("c", "cpp"),
    ".h": ("c", "cpp"),
    ".hpp": ("cpp", "c"),
    ".cpp": ("cpp", "c"),
    ".json": ("json",),
    ".js": ("javascript",),
    ".html": ("html",),
    ".css": ("css",),
    ".md": ("markdown",),
    ".toml": ("toml",),
    ".yaml": ("yaml",),
    ".so": ("elf",),
    ".pyc": ("pythonbytecode",),
    ".png": ("png",),
    ".gz": ("gzip",),
    ".npy": ("npy",),
}


def features(content: bytes) -> np.ndarray:
    """Return what the model reads of a file."""
    begin, end = content[:BLOCK].lstrip()[:SIDE], content[-BLOCK:].rstrip()[-SIDE:]
    both = np.full((2, SIDE), PADDING, np.int32)
    both[0, : len(begin)] = np.frombuffer(begin, np.uint8)
    both[1, SIDE - len(end) :] = np.frombuffer(end, np.uint8)
    return both.ravel()


def chosen(folder: Path) -> list[tuple[bytes, tuple[str, ...]]]:
    """Return the same files in each run, in an order that mixes their kinds, with the labels that are right."""
    paths = (path for path in folder.rglob("*") if path.suffix in LABELS and path.is_file())
    by_digest = sorted(paths, key=lambda path: hashlib.sha256(str(path.relative_to(folder)).encode()).digest())
    counts: dict[str, int] = {}
    files = []
    for path in by_digest:
        counts[path.suffix] = counts.get(path.suffix, 0) + 1
        content = path.read_bytes()
        if counts[path.suffix] <= MOST_FILES and len(content) >= 64:
            files.append((content, LABELS[path.suffix]))
    return files


def main() -> None:
    what, model = sys.argv[1], sys.argv[2]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    if what == "infer":
        rows = np.random.default_rng(0).integers(0, PADDING, (int(sys.argv[3]), 2 * SIDE)).astype(np.int32)
        for _ in range(100_000):
            session.run(None, {"bytes": rows})
        return
    names = json.loads(Path(sys.argv[3]).read_text())["target_labels_space"]
    right = []
    for content, labels in chosen(Path(sys.argv[4])):
        (scores,) = session.run(None, {"bytes": features(content)[None]})
        right.append(int(names[int(scores[0].argmax())] in labels))
    print(json.dumps({"accuracy": sum(right) / len(right), "samples": right}))


if __name__ == "__main__":
    main()
