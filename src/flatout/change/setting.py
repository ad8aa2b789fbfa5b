"""Build a Change from a knob and a value, with the name that every change has."""

from __future__ import annotations

from flatout.records.change import Argument, Change, Knob, Patch, Scalar


def setting(
    knob: Knob,
    value: Scalar | None = None,
    *,
    environment: dict[str, str] | None = None,
    launch: dict[str, tuple[str, ...]] | None = None,
    patch: str | None = None,
    argument: Argument | None = None,
    **parameters: Scalar,
) -> Change:
    """Return the knob at this value (None: it has none). `patch` names a patch, and the other keywords are its own."""
    text = "" if value is None else str(value)
    return Change(
        name=f"{knob.name}={text}" if text else knob.name,
        knob=knob,
        value=text,
        environment=environment or {},
        launch=launch or {},
        patch=Patch(name=patch, parameters=parameters) if patch is not None else None,
        argument=argument,
    )
