"""The request to `flatout run`, and the check for options that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flatout.change.micro_batch import micro_batch_of
from flatout.errors import UsageError
from flatout.run.data_cache import CacheRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One training command and how to keep it alive."""

    command: tuple[str, ...]
    config: Path | None = None  # a tuned.toml
    max_restarts: int = 0
    watches_hangs: bool = False
    hang_after_s: float | None = None  # None: learned from the job's steps
    resume_arguments: tuple[str, ...] = ()
    checkpoint: Path | None = None
    checkpoint_folder: Path | None = None
    ledger: Path | None = None
    takes_over: bool = False
    recording: Path | None = None
    num_gpus: int | None = None
    metrics: tuple[str, int] | None = None  # address and port
    adapts: Literal["off", "dry-run", "on"] = "off"  # the loader, the microbatch, a late node
    micro_batch_options: tuple[str, str] | None = None  # of the script, for its microbatch and its passes per step
    adapts_semantic: bool = False  # also what is trained
    adapts_power: bool = False  # also the power limits of the GPUs
    otlp: str | None = None  # an OpenTelemetry collector to push the metrics to
    machine_code: int | None = None
    redacts: bool = False
    data_cache: CacheRequest | None = None
    packed: tuple[str, ...] = ()  # folders of packs, or `DIR=SOURCE`
    on_regression: Literal["off", "warn", "revert"] = "off"  # if the changes of `config` do not help here

    @property
    def is_kept(self) -> bool:
        """Whether `flatout run` monitors the job; if not, its heartbeats are only for `flatout watch`."""
        needs_ledger = self.ledger is not None or self.metrics is not None or self.checkpoint_folder is not None
        needs_ledger = needs_ledger or self.adapts != "off"
        needs_judgement = bool(self.max_restarts) or self.watches_hangs or self.machine_code is not None
        return needs_ledger or needs_judgement

    def check(self) -> None:
        """Raise UsageError if the options contradict each other."""
        reverts = self.on_regression == "revert"
        self._check_adapt()
        restarts = reverts or self.adapts == "on"
        check_resume(self.resume_arguments, self.checkpoint, self.max_restarts or int(restarts))
        if reverts:
            self._check_revert()
        if self.recording is not None and self.ledger is None and self.metrics is None:
            raise UsageError(
                "`--recording` needs a ledger, but there is none",
                hint="add --ledger ledger.jsonl or --metrics-port 9464",
            )
        folder = self.checkpoint_folder
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UsageError(
                f"`--checkpoint-folder` must be a folder, but {folder} is a file",
                hint="pass a file that a script writes as --checkpoint",
            )

    def _check_adapt(self) -> None:
        """Raise UsageError for an option of `--adapt` without it, or whose numbers are not in the command."""
        options = self.micro_batch_options
        given = {
            "--micro-batch": options is not None,
            "--adapt-semantic": self.adapts_semantic,
            "--adapt-power": self.adapts_power,
        }
        name = next((name for name, is_given in given.items() if is_given), None)
        if self.adapts == "off" and name is not None:
            raise UsageError(f"`{name}` says what `--adapt` may change", hint="add --adapt dry-run or --adapt on")
        if self.adapts == "on" and self.adapts_semantic and not self._resumes:
            raise UsageError(
                "`--adapt-semantic` restarts the job from a checkpoint, but nothing says how the job resumes",
                hint="add --checkpoint-folder, or --checkpoint and --resume-arg",
            )
        if options is not None and micro_batch_of(self.command, options) is None:
            raise UsageError(
                f"the command must state a whole number for {' and for '.join(options)}, but does not",
                hint="pass both to the script, also where it has defaults",
            )

    @property
    def _resumes(self) -> bool:
        """Whether the job can resume from a checkpoint."""
        return self.checkpoint_folder is not None or bool(self.resume_arguments)

    def _check_revert(self) -> None:
        """Raise UsageError if the job could not go back to its command without the changes."""
        if self.config is None:
            raise UsageError("`--on-regression revert` goes back from the changes of a tuned.toml", hint="add --config")
        if not self._resumes:
            raise UsageError(
                "`--on-regression revert` restarts from a checkpoint, but nothing says how the job resumes",
                hint="add --checkpoint-folder, or --checkpoint and --resume-arg",
            )


def check_resume(arguments: Sequence[str], checkpoint: Path | None, max_restarts: int) -> None:
    """Raise UsageError for `--resume-arg` without a checkpoint or without restarts."""
    if arguments and checkpoint is None:
        raise UsageError(
            "`--resume-arg` is added once there is a checkpoint, but no `--checkpoint` says where it is",
            hint="pass the file that the script writes, e.g. --checkpoint out/ckpt.pt",
        )
    if arguments and not max_restarts:
        raise UsageError(
            "`--resume-arg` is added on restarts, but `--max-restarts` is 0",
            hint="allow restarts, e.g. --max-restarts 3",
        )
