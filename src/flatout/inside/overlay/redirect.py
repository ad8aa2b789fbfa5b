"""Start the redirection of a trial: writes that would replace a user's file go to FLATOUT_DIVERT/<the absolute path>.

Folders of which the process sees an overlay (see `enter`) are left to the kernel. Elsewhere, checkpoints are always
redirected, new or not: `torch.save`, `torch.jit.save`, `torch.distributed.checkpoint`, safetensors. Other files that
Python code opens, renames or removes are redirected only if they are older than the trial; new files are written where
the script wants them, and reported, so that they can be removed after the trial. In all processes of the trial, the
script sees the same files as without Flatout. Writes by other programs, and by compiled libraries that `patch_writers`
does not name, are neither redirected nor reported. Changes within a file that is too large to be copied first are
reported but not redirected.
"""

from __future__ import annotations

import os
from pathlib import Path

from flatout.inside.overlay.file_overlay import FileOverlay
from flatout.inside.overlay.patch_files import patch_files
from flatout.inside.overlay.patch_writers import patch_writers
from flatout.inside.protocol import Variable

_of_this_process: FileOverlay | None = None


def redirect_files(recording: Path | None) -> None:
    """Redirect files as soon as Python starts: a script can import `os.remove` before it imports torch."""
    global _of_this_process
    folder = os.environ.get(Variable.DIVERT)
    if folder and _of_this_process is None:
        overlay = FileOverlay(Path(folder), recording)
        patch_files(overlay)
        patch_writers(overlay)
        _of_this_process = overlay


def redirect(recording: Path | None) -> None:
    """Redirect checkpoints too, once torch is imported."""
    redirect_files(recording)
    if _of_this_process is not None:
        from flatout.inside.overlay.patch_libraries import patch_libraries

        patch_libraries(_of_this_process)
