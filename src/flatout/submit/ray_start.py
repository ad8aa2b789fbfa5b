"""Connect this process to Ray: to the cluster at an address, or to a new one on this machine.

The raylet of a new Ray gives each of its agents 15 seconds to write its port to a file, and ends if one is late, as on
busy cores, where an agent imports Ray for longer; no variable changes that (ray-project/ray#65983). `ray.init` then
fails after 30 seconds, with a bare `Exception`. It is called again: the files that Ray reads are in memory then.
In: an address, or None where Ray looks for one itself. Raises UsageError if no cluster is reached, FlatoutError if a
new Ray does not start.
"""

from __future__ import annotations

from typing import Any

from flatout.errors import FlatoutError, UsageError

ATTEMPTS = 3


def connect_ray(ray: Any, address: str | None) -> None:
    """Call `ray.init` until Ray runs, at most `ATTEMPTS` times. `ray` is the module."""
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address=address, **options)
            return
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f" at {address}" if address not in (None, "local") else ""
            raise UsageError(f"no Ray cluster can be reached{where}: {_first_line(error)}") from error
        except Exception as error:
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise FlatoutError(
                    f"Ray did not start on this machine in {ATTEMPTS} attempts: {_first_line(error)}",
                    hint="Ray's agents must start within 15 s: try again when fewer processes are running, or join a"
                    " cluster that runs already, by RAY_ADDRESS",
                ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
