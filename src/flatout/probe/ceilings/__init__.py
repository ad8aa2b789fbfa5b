"""What this machine really delivers: `flatout bench` measures it in processes of its own, and saves it as `Ceilings`.

In: what to measure and for how long. Out: `Ceilings`, in memory and as a file. One file a family of measurements; each
gives `Case`s, which the workers (`worker`) run round robin. Nothing is written to the user's disk unless that is
allowed.
"""

from flatout.probe.ceilings.saved import load_ceilings, saved_path

__all__ = ["load_ceilings", "saved_path"]
