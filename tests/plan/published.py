"""Rows of the published runs in `../shared`: of Korthikanti et al. (arXiv:2205.05198), Narayanan et al.
(arXiv:2104.04473), MT-NLG (arXiv:2201.11990), vTrain, BLOOM's chronicles and llm-foundry."""

from __future__ import annotations

import csv
from pathlib import Path

ROWS = {
    *range(597, 631),
    *(726, 768, 769, 783, 813, 816, 817, 822, 824, 661, 662, 663, 665, 666, 667),
    *(1, 3, 5, 6, 8, 10, 13, 14, 647),
}


def write_sample(runs: Path, path: Path) -> Path:
    """Copy a few rows of all sources, so that a test takes a moment."""
    with runs.open(newline="", encoding="utf-8") as file, path.open("w", newline="", encoding="utf-8") as out:
        reader = csv.DictReader(file)
        assert reader.fieldnames is not None
        writer = csv.DictWriter(out, reader.fieldnames)
        writer.writeheader()
        writer.writerows(row for row in reader if int(row["row_id"]) in ROWS)
    return path
