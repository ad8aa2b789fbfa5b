"""`flatout compress --model FILE.onnx` on a model that a package of PyPI ships: Magika's, which tells what a file is.

    pip download --no-deps magika==1.0.3
    python benchmarks/compress_onnx.py magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl FOLDER [--budget 5m] [--out FILE]

The wheel is Apache-2.0, and only unpacked. FOLDER has files by which the model is judged, such as `site-packages`: at
most 60 of each ending of `compress_onnx_job.py`, which says what they are. Every second one is held out. One thread;
batches of 1 and 8.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compress_digits import flatout, summary
from benchmarks.kept_result import keep

JOB = Path(__file__).with_name("compress_onnx_job.py")
MODEL, CONFIG = (f"magika/models/standard_v3_3/{name}" for name in ("model.onnx", "config.min.json"))


def compressed(wheel: Path, files: Path, folder: Path, budget: str) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as packed:
        for name in (MODEL, CONFIG):
            packed.extract(name, folder)
    start = shlex.join([sys.executable, str(JOB)])
    config = shlex.quote(str(folder / CONFIG))
    commands = ["--eval", f"{start} eval {{model}} {config} {shlex.quote(str(files))}"]
    commands += ["--bench", f"{start} infer {{model}} {{batch}}", "--batches", "1,8", "--model", str(folder / MODEL)]
    limits = ["--metric", "accuracy", "--max-loss", "2%", "--budget", budget, "--trials", "12"]
    return flatout("compress", *commands, *limits, "--out", str(folder / "out"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("files", type=Path)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        result = compressed(options.wheel, options.files.absolute(), Path(name), options.budget)
    keep({"load_average": load, "cores": os.cpu_count(), "wheel": options.wheel.name, **summary(result)}, options.out)


if __name__ == "__main__":
    main()
