"""Word how the files of trials are kept apart, and what that cannot cover. In: a `Separation`. Out: a sentence."""

from __future__ import annotations

from flatout.records.tuning import Separation

_MAX_FOLDERS = 4


def separation_sentence(separation: Separation) -> str:
    folders = ", ".join(separation.folders[:_MAX_FOLDERS])
    if len(separation.folders) > _MAX_FOLDERS:
        folders += f" and {len(separation.folders) - _MAX_FOLDERS} more"
    if separation.method == "overlay":
        namespace = "user and mount namespace" if separation.needs_user else "mount namespace"
        return (
            f"what trials write in {folders} is kept apart by an overlay in a {namespace}, whatever writes it;"
            " elsewhere only what Python code writes is, except in caches and in the machine's temporary folder;"
            " services and object stores are not covered"
        )
    why = f" (no overlay: {separation.reason})" if separation.reason else ""
    return (
        f"what Python code writes in trials is kept apart by hooks{why}; not covered are other programs, compiled"
        " libraries that open files themselves, files that only their descriptor names, the machine's temporary folder,"
        " services and object stores"
    )
