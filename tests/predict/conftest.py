"""The traces with a known cause, as for `tests/diagnose`."""

from __future__ import annotations

from tests.diagnose.conftest import known, untraced_step_s

__all__ = ["known", "untraced_step_s"]
