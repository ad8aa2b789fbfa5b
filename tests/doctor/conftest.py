"""The public samples lie beside the checkout; where they do not, the test that judges them is left out."""

from __future__ import annotations

import sys

from tests.doctor.samples import PUBLIC

collect_ignore: list[str] = []
if not PUBLIC.exists():
    collect_ignore.append("test_public_samples.py")
    print("tests/doctor: ../shared/data is absent, so public samples are not judged", file=sys.stderr)
