"""The rates that this machine delivers: `flatout bench` measures them in separate processes and saves `Ceilings`.

In: what to measure and for how long. Out: `Ceilings`, in memory and as a file. Each family of measurements has one
module, which yields `Benchmark`s; the workers (`worker`) run them round robin. Nothing is written to the user's disk
unless that is allowed.
"""

from flatout.probe.ceilings.saved import load_ceilings, saved_path

__all__ = ["load_ceilings", "saved_path"]
