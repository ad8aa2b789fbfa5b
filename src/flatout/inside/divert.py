"""A trial never changes a file that the user had: what would overwrite it goes to FLATOUT_DIVERT/<the absolute path>.

Checkpoints always go there, new or not: `torch.save`, `torch.jit.save`, `torch.distributed.checkpoint`, safetensors.
Of what Python code opens, renames or removes otherwise, only files that were there before the trial are diverted; new
ones are written where the script wants them, and told. In all processes of the trial the script then finds what it
would find without us. Not diverted, nor told: what other programs and compiled libraries write by themselves, and
changes within a file that is too large to be copied first (which is told).
"""

from __future__ import annotations

import os
from pathlib import Path

from flatout.inside.divert_files import patch_files
from flatout.inside.divert_libraries import patch_libraries
from flatout.inside.diverted import Diverted

VARIABLE = "FLATOUT_DIVERT"


def divert(recording: Path | None) -> None:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    diverted = Diverted(Path(folder), recording)
    patch_libraries(diverted)
    patch_files(diverted)
