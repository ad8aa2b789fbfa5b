"""What a user of HTA types for one trace: load it, then the four breakdowns. Runs in HTA's own environment."""

from __future__ import annotations

import os
import sys

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]


def main(path: str) -> None:
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
