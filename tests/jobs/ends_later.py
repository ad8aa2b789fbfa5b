"""Runs the script given, and lets Python end a moment later.

torch's gloo may otherwise abort the process (torch 2.13: `terminate called without an active exception`, in one of 25
small jobs, and in one of 4 with a long `sys.setswitchinterval`): a gloo thread that lets go of the last gradients'
work needs the GIL, as a backward pass leaves a Python object in it, and a Python that ends gives it to no thread.

For the same reason a job can hang at its end: the last reference to the process group is dropped by a thread that
holds the GIL, and the group's destructor waits for the gloo thread. Jobs whose model is gone before Python ends
therefore keep one reference to their process group for good.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import time

atexit.register(time.sleep, 0.1)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
