"""Find tuners of others that Flatout's plugin would displace: NCCL asks one tuner only.

In: the environment and the folders in which libraries are looked up. Out: what was found, in words, or None. Without
`NCCL_TUNER_PLUGIN`, NCCL loads `libnccl-tuner.so`, and otherwise asks the network plugin, such as aws-ofi-nccl, for
its tuner.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from flatout.inside.protocol import PLUGIN_NAME

# Network plugins that bring a tuner, and tuners of vendors, by the names of their libraries.
_LIBRARIES = {
    "libnccl-tuner.so": "the tuner plugin libnccl-tuner.so",
    "libnccl-ofi-tuner.so": "the tuner of aws-ofi-nccl",
    "libnccl-tuner-ofi.so": "the tuner of aws-ofi-nccl",
    "libnccl-net-ofi.so": "the network plugin aws-ofi-nccl, which brings a tuner",
    "libnccl-net-aws-ofi.so": "the network plugin aws-ofi-nccl, which brings a tuner",
    "libnccl-tuner_gib.so": "Google's tuner",
}
# Where vendors install them, besides LD_LIBRARY_PATH.
_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/usr/local/gib/lib64",
)
_NONE = {"", "none"}


def displaced_tuner(environment: Mapping[str, str] = os.environ, folders: Iterable[str] = _FOLDERS) -> str | None:
    """Describe the tuner that NCCL would ask without Flatout's plugin; None if there is none."""
    given = environment.get("NCCL_TUNER_PLUGIN", "").strip()
    is_ours = PLUGIN_NAME.part(os.path.basename(given)) is not None
    if given.lower() not in _NONE and not is_ours:
        return f"the tuner plugin in NCCL_TUNER_PLUGIN, {given}"
    network = environment.get("NCCL_NET_PLUGIN", "").strip()
    if "ofi" in network.lower():
        return f"the tuner of the network plugin in NCCL_NET_PLUGIN, {network}"
    if environment.get("FI_PROVIDER", "").strip().lower() == "efa":
        return "the tuner of aws-ofi-nccl, because FI_PROVIDER is efa"
    searched = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for folder in (*searched, *folders):
        for name, words in _LIBRARIES.items():
            if (Path(folder) / name).exists():
                return f"{words}, in {folder}"
    return None
