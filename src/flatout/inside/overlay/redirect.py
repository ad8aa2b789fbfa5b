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

from flatout.inside.overlay.file_overlay import FileOverlay
from flatout.inside.overlay.patch_files import patch_files
from flatout.inside.protocol import Variable

_of_this_process: FileOverlay | None = None


def redirect_files(recording: Path | None) -> None:
    """As Python starts: a script may hold `os.remove` by a name of its own, and use it, before it imports torch."""
    global _of_this_process
    folder = os.environ.get(Variable.DIVERT)
    if folder and _of_this_process is None:
        diverted = FileOverlay(Path(folder), recording)
        patch_files(diverted)
        _of_this_process = diverted


def redirect(recording: Path | None) -> None:
    """Once torch is there."""
    redirect_files(recording)
    if _of_this_process is not None:
        from flatout.inside.overlay.patch_libraries import patch_libraries

        patch_libraries(_of_this_process)
