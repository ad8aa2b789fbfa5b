"""Switch all settings of an arm together. One that fails is named in the arm's problem, and never stops the job."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from flatout.inside.blocks.schedule import ScheduledArm, Setting
from flatout.inside.blocks.switcher import Switcher
from flatout.inside.log import LOG

# The module of each setting; it has a function of the setting's name that returns a switcher for its parameters.
MODULES: Mapping[str, str] = {
    "threads": "process",
    "bind_cores": "process",
    "garbage_collection": "process",
    "tf32": "kernels",
    "autocast": "gated",
    "non_blocking_copies": "gated",
    "ddp_no_sync": "gated",
    "ddp": "reducer",
    "ddp_hook": "reducer",
    "dataloader": "loaders",
}


class ArmSwitcher:
    """All settings of one arm, applied in order and taken back in the reverse order."""

    def __init__(self, arm: ScheduledArm) -> None:
        self.name = arm.name
        self._problems: list[str] = []
        self._switchers: list[Switcher] = []
        self._on: list[Switcher] = []
        for setting in arm.settings:
            switcher = self._make(setting)
            if switcher is not None:
                self._switchers.append(switcher)

    def _make(self, setting: Setting) -> Switcher | None:
        if setting.name not in MODULES:
            self._problems.append(f"{setting.name} cannot be switched while the job runs")
            return None
        try:
            module = import_module(f"{__package__}.{MODULES[setting.name]}")
            switcher: Switcher = getattr(module, setting.name)(**setting.parameters)
            switcher.prepare()
        except Exception as error:  # noqa: BLE001 - the job runs without it
            self._failed(setting.name, "installing", error)
            return None
        return switcher

    @property
    def problem(self) -> str | None:
        """Return why the arm is not what its name says; None if all of its settings took effect."""
        of_settings = [switcher.problem for switcher in self._switchers if switcher.problem is not None]
        return "; ".join([*self._problems, *of_settings]) or None

    def apply(self) -> None:
        for switcher in self._switchers:
            if switcher.problem is not None:
                continue
            try:
                switcher.apply()
            except Exception as error:  # noqa: BLE001 - never the job's
                self._failed(type(switcher).__name__, "applying", error)
            else:
                self._on.append(switcher)

    def undo(self) -> None:
        while self._on:
            switcher = self._on.pop()
            try:
                switcher.undo()
            except Exception as error:  # noqa: BLE001 - never the job's
                self._failed(type(switcher).__name__, "taking back", error)

    def step_ended(self) -> None:
        for switcher in self._on:
            switcher.step_ended()

    def block_ended(self) -> None:
        for switcher in self._on:
            switcher.block_ended()

    def _failed(self, name: str, where: str, error: Exception) -> None:
        LOG.error(f"{where} {name} for blocks")
        self._problems.append(f"{where} {name} failed: {type(error).__name__}: {error}")
