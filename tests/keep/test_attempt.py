"""An error of the watch's own leaves the job alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout.keep.attempt import AttemptRunner

pytestmark = pytest.mark.usefixtures("warm")


def test_a_job_outlives_an_error_of_the_watch(tmp_path: Path) -> None:
    told: list[str] = []

    def fails(ranks: object) -> None:
        raise RuntimeError("a mistake of ours")

    watched = AttemptRunner(
        hang_after_s=None, watches_hangs=True, on_look=fails, on_hang=told.append, on_problem=told.append
    )
    program = f"import time; time.sleep(1); open({str(tmp_path / 'done')!r}, 'w')"
    folder = tmp_path / "attempt"
    folder.mkdir()
    done = watched.run([sys.executable, "-c", program], dict(os.environ), folder, reached=lambda pulse: None)
    assert done.ended.code == 0 and (tmp_path / "done").exists()
    assert told == ["RuntimeError: a mistake of ours"]
