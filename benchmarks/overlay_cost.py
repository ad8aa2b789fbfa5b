"""What `open` and `os.stat` cost more in a trial, whose files are kept apart, than without Flatout.

    python benchmarks/overlay_cost.py

Out: a line of JSON for each call: its microseconds alone and in a trial, and their ratio. The best of 20 rounds of 200
calls, of a file that the user has and the trial has not written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STARTUP = Path(__file__).parents[1] / "src" / "flatout" / "inside" / "startup"
SCRIPT = """if True:
    import json, os, time
    import torch

    torch.save(1, "model.pt")

    def best_s(call):
        best = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                call()
            best = min(best, (time.perf_counter() - began) / 200)
        return best

    plain_stat, plain_open = os.stat.__wrapped__, open.__wrapped__
    print(json.dumps({
        "stat": [best_s(lambda: plain_stat("mine.txt")), best_s(lambda: os.stat("mine.txt"))],
        "open": [best_s(lambda: plain_open("mine.txt").close()), best_s(lambda: open("mine.txt").close())],
    }))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work, recording = folder / "work", folder / "trial" / "recording"
        work.mkdir()
        (recording / ".state").mkdir(parents=True)
        (work / "mine.txt").write_text("the user's")
        variables = {
            "PYTHONPATH": str(STARTUP),
            "FLATOUT_LIGHT": "1",
            "FLATOUT_RECORDING": str(recording),
            "FLATOUT_DIVERT": str(folder / "trial" / "saved"),
        }
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=work, env={**os.environ, **variables}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    for call, (alone_s, in_trial_s) in json.loads(done.stdout).items():
        figures = {"call": call, "alone_us": alone_s * 1e6, "in_trial_us": in_trial_s * 1e6}
        print(json.dumps({**figures, "ratio": in_trial_s / alone_s}))


if __name__ == "__main__":
    main()
