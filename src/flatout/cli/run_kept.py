"""A job that `flatout run` watches: what it was asked for, put together from the rooms that do it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.inside.protocol import Variable

if TYPE_CHECKING:
    from flatout.keep.beats import Pulse
    from flatout.keep.hang import Hang
    from flatout.keep.ledger import Totals, Writer
    from flatout.keep.saving import Saving
    from flatout.keep.supervise import BadHost
    from flatout.launch import Ended


def say(text: str, *, begins: str = "flatout: ") -> None:
    """On standard error. Where that is gone or full, the job is kept alive all the same."""
    with suppress(OSError, ValueError):
        print(f"{begins}{text}", file=sys.stderr, flush=True)


def _num_visible(num_gpus: int, environment: dict[str, str]) -> int:
    """Of this host's GPUs, those that the job may use."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return num_gpus if listed is None else min(num_gpus, len([one for one in listed.split(",") if one.strip()]))


def _num_nodes(words: Sequence[str], environment: Mapping[str, str]) -> int:
    from flatout.change.launchers import launch_value
    from flatout.keep.hosts import num_nodes

    return num_nodes(words, launch_value(words, "torchrun", "--nnodes", environment), environment)


def _choose_interval(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> dict[str, str]:
    """The variable that `flatout.checkpoint` reads, unless the user has set it."""
    if given := os.environ.get(Variable.CHECKPOINT_EVERY_S):
        say(f"a checkpoint every {given} s, as {Variable.CHECKPOINT_EVERY_S} says")
        return {}
    saving, _ = _saving(folder, ledger, words, environment, writer)
    if saving is None:
        return {}
    say(saving.describe())
    return {Variable.CHECKPOINT_EVERY_S: f"{saving.every_s:.6g}"}


def _tell_levers(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> None:
    """At the end, when the most is known."""
    from flatout.cli.ledger import price_of
    from flatout.report.ledger_text import levers_text

    saving, totals = _saving(folder, ledger, words, environment, writer)
    if saving is not None:
        price = price_of(totals.gpu, None)
        say(levers_text(saving.levers(totals.num_devices or 1, None if price is None else price[0])))


def _saving(
    folder: Path, ledger: Path, words: Sequence[str], environment: Mapping[str, str], writer: Writer
) -> tuple[Saving | None, Totals]:
    import msgspec

    from flatout.errors import FlatoutError
    from flatout.keep.ledger import Totalling, read
    from flatout.keep.saving import choose

    totals = Totalling().totals()
    try:
        if ledger.is_file():  # else a pipe or a device, which gives nothing back
            totals = read(ledger)
        saving = choose(folder, totals, num_nodes=_num_nodes(words, environment))
    except (FlatoutError, ArithmeticError, ValueError) as error:  # no reason not to run the job
        say(f"how often to save is not chosen: {error}")
        return None, totals
    writer.write("saving", **msgspec.to_builtins(saving))
    return saving, totals


def _look_for_others(
    words: Sequence[str],
    environment: Mapping[str, str],
    state: Path,
    *,
    checkpoints: tuple[Path, ...],
    ledger: Path | None,
    job: str | None,
    takes_over: bool,
    clean: Callable[[str], str],
) -> bool:
    """Whether a job was taken over. Raises InputError where another one is in the way."""
    from flatout.errors import InputError
    from flatout.keep.other_runs import about_this, end, others, refuse, write_about
    from flatout.report.command import command_line

    num_tasks = environment.get("SLURM_NTASKS", "")
    is_part = _num_nodes(words, environment) > 1 or (num_tasks.isdecimal() and int(num_tasks) > 1)
    about = about_this(command_line(words), checkpoints, ledger, is_part=is_part, job=job)
    is_taken_over = False
    for other in list(others(about)):
        if not other.is_in_the_way:
            say(clean(other.describe()))
            continue
        if not takes_over or other.is_watched:
            error = refuse(other)
            raise InputError(clean(str(error)), hint=clean(error.hint))
        say(clean(f"taking over: {other.describe()}"))
        end(other)
        is_taken_over = True
    write_about(state, about)
    return is_taken_over


def keep(
    words: Sequence[str],
    environment: dict[str, str],
    state: Path,
    *,
    max_restarts: int,
    machine_code: int | None,
    hang_after_s: float | None,
    watches_hangs: bool,
    resume: Callable[[Sequence[str]], Sequence[str]],
    checkpoint: Path | None,
    checkpoint_folder: Path | None,
    ledger: Path | None,
    recording: Path | None,
    takes_over: bool,
    gpus: int | None,
    metrics: tuple[str, int] | None,
    clean: Callable[[str], str],
) -> Ended:
    from contextlib import ExitStack

    from flatout import __version__
    from flatout.change.launchers import launch_value
    from flatout.errors import FlatoutError
    from flatout.keep.attempt import Watched
    from flatout.keep.book import LedgerBook
    from flatout.keep.books import open_own, own_ledger
    from flatout.keep.clocks import ClockWatch
    from flatout.keep.earlier import earlier_of, start_of
    from flatout.keep.exporter import serving
    from flatout.keep.hosts import goes_on_without_host, without_host
    from flatout.keep.nodes import LOST_AFTER_S, Nodes
    from flatout.keep.supervise import Progress, Restarts, keep_alive
    from flatout.keep.within import Within
    from flatout.probe.nvml import Gpus
    from flatout.report.command import command_line

    known = None
    if recording is not None:
        from flatout.cli.run_recording import recorded  # reads all of it

        known = recorded(recording)
    node = clean(os.uname().nodename)
    start = start_of(os.environ, launch_value(words, "torchrun", "--rdzv-id", environment))
    is_taken_over = _look_for_others(
        words,
        environment,
        state,
        checkpoints=tuple(path for path in (checkpoint, checkpoint_folder) if path is not None),
        ledger=None if ledger is None else own_ledger(ledger, node),
        job=None if start is None else start.job,
        takes_over=takes_over,
        clean=clean,
    )
    writer, node = open_own(ledger if ledger is not None else state / "ledger.jsonl", node, clean=clean)
    path = writer.path
    gpus_here = Gpus()
    xids = gpus_here.xids()
    earlier = earlier_of(path, start, node=node)
    # Without a ledger of it Slurm's own count tells that the job goes on.
    goes_on = is_taken_over or earlier is not None or (start is not None and bool(start.number))
    progress = Progress(earlier)
    others_go_on = goes_on_without_host(launch_value(words, "torchrun", "--nnodes", environment))
    together = ledger if ledger is not None and ledger.is_dir() else None
    nodes = Nodes(together, node, job=start.job if start else None, others_go_on=others_go_on, clean=clean)
    book = LedgerBook(
        writer,
        progress,
        num_devices=gpus or _num_visible(len(gpus_here.facts()), environment) or None,
        command=command_line(words),
        tool=__version__,
        node=node,
        gpu=next((str(facts["name"]) for facts in gpus_here.facts() if "name" in facts), None),
        within=Within(
            clocks=None if gpus_here.problem else ClockWatch(gpus_here.clocks),
            no_clocks=gpus_here.problem or "",
            recorded=known,
        ),
        start=start,
        earlier=earlier,
        goes_on=goes_on,
    )

    if earlier is not None:
        say(
            f"goes on with {start.job if start else ''}: start {earlier.num_starts + 1}, at step {earlier.farthest},"
            f" {min(earlier.num_restarts, max_restarts)} of {max_restarts} restarts spent"
        )

    def tell_hang(hang: Hang) -> None:
        say(clean(hang.describe()))
        whole = [f"rank {rank}:\n{text}" for rank, text in sorted(hang.stacks.items())]
        for text in hang.main_threads() if ledger is not None else whole:
            say(clean(text.strip()), begins="")
        book.hangs(hang)

    def look(ranks: Sequence[Pulse]) -> None:
        book.look(ranks)
        for other in nodes.newly_lost():
            say(f"{other} has not been heard of for {LOST_AFTER_S:.0f} s: it is lost, or its network is")

    def next_words(attempt: int, bad_host: BadHost | None) -> Sequence[str]:
        nonlocal words
        others = None if bad_host is None else without_host(words, bad_host.name, environment)
        if bad_host is not None and (others is not None or bad_host.is_sure):
            words = words if others is None else others
            job = environment.get("SLURM_JOB_ID")
            requeue = f"; `scontrol requeue {job}` takes the whole job elsewhere" if job else ""
            why = "its GPU failed" if bad_host.is_sure else "it failed twice in a row"
            fate = f"is left out: {why}" if others else f"failed, and there is no spare node{requeue}"
            say(clean(f"{bad_host.name} {fate}"))
        if checkpoint_folder is not None:
            environment.update(_choose_interval(checkpoint_folder, path, words, environment, writer))
        return resume(words) if attempt or goes_on else words

    watched = Watched(
        hang_after_s=hang_after_s,
        watches_hangs=watches_hangs,
        on_look=look,
        on_hang=tell_hang,
        on_problem=lambda text: say(f"the watch over the job has ended by an error of its own: {text}"),
        read_xids=lambda: [entry["number"] for entry in xids.read() or ()],
        nodes=nodes,
    )
    with ExitStack() as stack:
        try:
            if metrics is not None:
                stack.enter_context(serving(path, *metrics, state=state, say=say))
            ended = keep_alive(
                watched,
                Restarts(max_restarts, others_go_on=others_go_on, earlier=earlier, machine_code=machine_code),
                progress,
                next_words=next_words,
                environment=environment,
                state=state,
                book=book,
                say=lambda text: say(clean(text)),
                nodes=nodes,
            )
        except FlatoutError as error:  # the command cannot be started, or the port is taken
            writer.write("end", code=error.exit_code, why=str(error))
            raise
        except KeyboardInterrupt:  # before the command was started: then it is handed on
            writer.write("end", code=130, why="it was interrupted")
            raise
    if checkpoint_folder is not None:
        _tell_levers(checkpoint_folder, path, words, environment, writer)
    writer.close()
    if writer.problem is not None:
        say(f"the ledger is not complete: {writer.problem}")
    return ended
