"""Texts of failures -> class and restart: a corpus of public texts and traps, and what must never count."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import msgspec
import pytest

from flatout.catalog import failure_words, failures
from flatout.catalog.failure_words import WordEstimate
from flatout.catalog.failures import CLASSES, Phase, fit, known_failures, phrase_pattern
from flatout.catalog.log_prefixes import without_prefixes
from flatout.keep.classify import classify
from flatout.keep.error_text import errors_in, phase_in, without_names
from flatout.keep.explain_failure import LEAST_LIKELY, explain_failure

DATA = Path(__file__).parents[1] / "data" / "failures"
# `failure_messages.csv` was there before the table of failures; `public_texts.csv` was collected from public issues, or
# composed from the sources of the programs, after the table was written.
# `later_texts.csv` has one set for each first letter of an id. Each was composed, with its answers, before the table
# was tried on it, and the table was extended after each. At first sight, class and decision were right in 70 and 70 %
# (a), 50 and 78 % (b), 72 and 88 % (c), 65 and 82 % (d), 95 and 95 % (e), 72 and 78 % (f), 85 and 82 % (g), 75 and 85 %
# (h), 88 and 92 % (i). Of the answers of g to i, 21 were changed afterwards: earlier sets have another one for the same
# words. What the table reaches now says nothing about texts that it has never seen. Of the sets from j on, which are of
# public issues and logs, only some rows are here. At first sight: 67 and 80 % of 60 (j),
# 74 and 79 % of 53 (k), 72 and 84 % of 50 (l).
# `fresh_texts.csv` has whole sets of texts found in public issues, docs and logs, whose answers were written before
# `explain` was tried on them. At first sight, class and decision were right in 79 and 87 % of 82 (r, by the table
# alone), 87 and 90 % of 79 (s, with the first estimates by words), 79 and 90 % of 81 (t; 77 and 85 % by the table
# alone), 91 and 94 % of 78 (u; 86 and 90 % by the table alone; about half of u are messages that are known to all).
# Then 64 and 73 % of 70 (v), from many programs that no set had before, and 75 and 78 % of 40 (w). All texts from v on
# are verbatim, each with its source, and none is from memory.
# Then 64 and 74 % of 66 (x), with the estimates of before and of now, which left three and two healthy hosts; 78 and
# 89 % of 18 (y) with those of before, 72 and 89 % with those of now.
# Then 85 and 90 % of 84 (z), of the kinds of `failure_messages.csv` again: what 25 searches found first, but texts
# whose thread, or whose words, an earlier set or an earlier row has; one healthy host would have been left.
# With the kinds of these fixed, 71 and 74 % of 38 (n), of 12 further searches, and no healthy host left; in four the
# thread contradicts the words (n018, n020, n021, n025). Then 85 and 88 % of 26 (o), of 9 searches, and no host left.
# Then 82 and 84 % of 45 (A), half of 89 texts of 48 searches without threads or words that an earlier set has, and
# two healthy hosts left (one answer was changed since, because five earlier texts have another one for CUDA's launch
# failure); all five traps right. The other half is in `held_out/` (`benchmarks/README.md`).
# One answer each of t, u and w and two of v were changed afterwards, because an earlier set has another one for the
# same words. Where an answer of v contradicts an earlier one of the same kind (CUDA error 217, a topology file of
# NCCL), the table follows v, whose source shows the cause.
# `harmless_lines.csv` has lines of healthy jobs, which say nothing.
CORPORA = ("failure_messages.csv", "public_texts.csv", "later_texts.csv", "fresh_texts.csv")


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def text_of(row: dict[str, str]) -> str:
    return f"{row['exception_type']}: {row['message']}" if row["exception_type"] else row["message"]


def phase_of(row: dict[str, str]) -> Phase:
    return "start" if row["phase"] == "start" else "training"


def class_by_table(text: str, phase: Phase | None = None) -> str:
    """Return the class that the table gives, without an estimate by words."""
    classification = classify(errors_in(text), phase)
    return classification.failure_class if classification is not None else "unknown"


@pytest.mark.parametrize(
    ("corpus", "least"),
    [("failure_messages.csv", 117), ("public_texts.csv", 151), ("later_texts.csv", 537), ("fresh_texts.csv", 712)],
)
def test_nine_in_ten_classes_and_nineteen_in_twenty_decisions_are_right(corpus: str, least: int) -> None:
    texts = rows(corpus)
    assert len(texts) >= least
    answers = [explain_failure(text_of(row), phase_of(row)) for row in texts]
    right = [answer.failure_class == row["class"] for answer, row in zip(answers, texts, strict=True)]
    decided = [answer.restart == row["should_restart"] for answer, row in zip(answers, texts, strict=True)]
    assert sum(right) >= 0.9 * len(texts), [
        row["id"] for row, is_right in zip(texts, right, strict=True) if not is_right
    ]
    assert sum(decided) >= 0.95 * len(texts)


@pytest.mark.parametrize("corpus", CORPORA)
def test_without_a_phase_nine_in_ten_are_still_right(corpus: str) -> None:
    texts = rows(corpus)
    answers = [explain_failure(text_of(row)) for row in texts]
    assert sum(one.failure_class == row["class"] for one, row in zip(answers, texts, strict=True)) >= 0.9 * len(texts)


@pytest.mark.parametrize("corpus", CORPORA)
def test_no_trap_and_no_mistake_of_the_user_excludes_a_host_or_is_restarted(corpus: str) -> None:
    for row in rows(corpus):
        answer = explain_failure(text_of(row), phase_of(row))
        if row["class"] in ("mistake", "job", "disk-full", "shm-full", "device-oom"):
            assert answer.restart != "elsewhere", row
        if row["class"] == "mistake":
            # The words of a compiler's failure come in the next exception; a step that waits may still start.
            is_contradicted = row["id"] in ("p058", "z029")
            assert answer.restart == "no" or is_contradicted, row
        if row.get("source") in ("trap", "made") or row.get("framework") == "trap":
            assert (answer.failure_class, answer.restart) == (row["class"], row["should_restart"]), row


@pytest.mark.parametrize(
    ("text", "phase", "expected"),
    [
        ("RuntimeError: network error: expected 3 input channels, got 1", "start", ("mistake", "no")),
        ("RuntimeError: dataset quota exceeded for class 3", "start", ("mistake", "no")),
        ("RuntimeError: heartbeat timeout column is missing in ecg.csv", "start", ("mistake", "no")),
        ("RuntimeError: could not connect to parent node 5 of the graph", "start", ("mistake", "no")),
        ("RuntimeError: class 503 has no samples", "start", ("mistake", "no")),
        ("KeyError: 'cudaErrorECCUncorrectable'", "start", ("mistake", "no")),
        ("ValueError: errno=5 is not a valid class", "start", ("mistake", "no")),
        ("BlockingIOError: [Errno 11] write could not complete without blocking", "training", ("job", "yes")),
        ("RuntimeError: the buffer is full", "training", ("job", "yes")),
        ("AssertionError: KeyboardInterrupt token in the vocabulary", "start", ("mistake", "no")),
        ("ValueError: sample was preempted by user", "start", ("mistake", "no")),
        # A compiler fails in the same way at each start, and in training only for the shapes that came then.
        ("torch._inductor.exc.InductorError: AssertionError", "start", ("mistake", "no")),
        ("torch._inductor.exc.InductorError: AssertionError", "training", ("job", "yes")),
    ],
)
def test_words_of_failures_that_mean_something_else_here(text: str, phase: Phase, expected: tuple[str, str]) -> None:
    answer = explain_failure(text, phase)
    assert (answer.failure_class, answer.restart) == expected


def test_words_of_machines_in_errors_of_scripts_say_nothing() -> None:
    """Each phrase of a host's or GPU's failure, in types that only a script raises, and quoted in one of torch's."""
    for known in known_failures():
        if known.failure_class not in ("gpu", "host"):
            continue
        for phrase in known.phrases:
            words = phrase.strip("^").replace("*", "x").replace("#", "3")
            for exception in ("KeyError", "ValueError", "AssertionError", "ModuleNotFoundError", "JSONDecodeError"):
                answer = explain_failure(f"{exception}: {words}", "start")
                assert answer.failure_class == "mistake", (exception, words)
            if "'" not in words and "/dev/" not in words:
                answer = explain_failure(f"RuntimeError: no label '{words}' in the map", "start")
                assert (answer.failure_class, answer.restart) == ("mistake", "no"), words


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("no file '/data/eccv/x y.pt' here", "no file <name> here"),
        ("open /data/eccv2024/train.json failed", "open <path> failed"),
        ("open data/oom/killed.json failed", "open <path> failed"),
        ("get https://nccl.example/timeout failed", "get <url> failed"),
        ("NET/IB : no TCP/IP over CUDA/NCCL", "NET/IB : no TCP/IP over CUDA/NCCL"),
        ("ProcessGroupNCCL's watchdog, dataloader's workers", "ProcessGroupNCCL's watchdog, dataloader's workers"),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection", "[<gloo pair.cc:534>] Connection"),
        ("Cuda failure 2 'out of memory'", "Cuda failure 2 out of memory"),
        (
            'E0522 10:32:28.4 1 a.go:3] "No fit" pod="a/b" err="no GPU"',
            "E0522 10:32:28.4 1 a.go:3] No fit pod=<name> err=no GPU",
        ),
        ("No space left on device: '/dev/shm/torch_1'", "No space left on device: '/dev/shm'"),
        ("unable to open </torch_29919_11> in", "unable to open </torch_29919_11> in"),
        (
            "thread terminated with exception: CUDA error: x",
            "thread terminated with exception:\nCUDA error: x",
        ),
    ],
)
def test_what_a_job_calls_its_data_is_taken_out(message: str, left: str) -> None:
    assert without_names(message) == left


def test_a_phrase_begins_and_ends_at_a_words_boundary() -> None:
    def found(phrase: str, text: str) -> bool:
        return re.search(phrase_pattern(phrase), text, re.MULTILINE | re.IGNORECASE) is not None

    assert found("GPU is lost", "The GPU is lost.")
    assert not found("GPU is lost", "GPU is lostness") and not found("GPU is lost", "aGPU is lost")
    assert not found("timeout", "nccl_timeout") and not found("timeout", "timeout-sweep")
    assert found("exitcode * -#", "exitcode  : -11 (pid: 3)") and not found("exitcode * -#", "exitcode: 1")
    assert found("^Aborted", "x\nAborted (core)") and not found("^Aborted", "it was Aborted")
    assert found("a * b", "a" + " x" * 90 + " b") and not found("a * b", "a" + " x" * 120 + " b")
    assert not found("a * b", "a\nb")


# What programs' own lists of errors say, as their sources write it: cuSOLVER, cuDNN, cuFFT, cuSPARSE and cuRAND, Ray,
# UCX, torch's C++; and codes and words that are not the system's.
@pytest.mark.parametrize(
    ("text", "phase", "expected"),
    [
        ("RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling <f>", "start", ("device-oom", "no")),
        ("RuntimeError: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", "training", ("device-oom", "yes")),
        ("RuntimeError: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "start", ("host-oom", "no")),
        ("RuntimeError: CUFFT_NOT_IMPLEMENTED", "start", ("mistake", "no")),
        ("RuntimeError: CURAND_STATUS_LENGTH_NOT_MULTIPLE", "training", ("job", "yes")),
        ("RuntimeError: CUSOLVER_STATUS_ZERO_PIVOT", "start", ("job", "yes")),
        ("OwnerDiedError: The object's owner has exited. This is", "training", ("secondary", "yes")),
        ("TaskUnschedulableError: The task is not schedulable: it", "start", ("mistake", "no")),
        ("NodeDiedError: the node it was running on is dead or unavailable.", "training", ("host", "elsewhere")),
        ("[n1:1:0:1] a.c:3 UCX  ERROR ibv_open_device(mlx5_2) failed: No such device", "start", ("host", "elsewhere")),
        ("[n1:1:0:1] a.c:3 Remote access error on mlx5_0:1/IB (synd 0x13)", "training", ("job", "yes")),
        ("[n1:1:0:1] a.c:3 UCX  ERROR Invalid value for TLS: 'rdma'", "start", ("mistake", "no")),
        ("UCXUnreachable: <[Send] ep: 0x7f>: Destination is unreachable", "start", ("network", "yes")),
        ("ls: cannot access '/mnt/x': Transport endpoint is not connected", "training", ("host", "elsewhere")),
        ("DeadlockDetectedException: DeadLock detected from rank: 0", "training", ("secondary", "yes")),
        ("E0213 12:07:20.08 8 a.py:8] failed (exitcode: -15) rank: 0 (pid: 8)", "training", ("preempted", "yes")),
        ("E0213 12:07:20.08 8 a.py:8] failed (exitcode: -11) rank: 0 (pid: 8)", "training", ("unknown", "yes")),
        ("RuntimeError: Could not allocate list object!", "training", ("host-oom", "yes")),
        ("RuntimeError: NCCL timeout in: NCCLUtils.cpp:48, NCCL version 2.27.3", "training", ("timeout", "yes")),
        ("RuntimeError: Internal consistency check failed: Invalid clear() call.", "start", ("mistake", "no")),
        ("OSError: [Errno 5] Input/output error", "training", ("host", "elsewhere")),
        ("OSError: [Errno 5] {'status': -2, 'details': 'too slow'}", "training", ("job", "yes")),
        (
            'pod "a" failed with reason: "UnexpectedAdmissionError", message: "Pod Allocate failed due to devices"',
            "start",
            ("host", "elsewhere"),
        ),
    ],
)
def test_what_programs_list_as_their_own_errors(text: str, phase: Phase, expected: tuple[str, str]) -> None:
    answer = explain_failure(text, phase)
    assert (answer.failure_class, answer.restart) == expected


def test_more_workers_than_ranks_is_another_failure_than_fewer() -> None:
    text = "RuntimeError: Timed out in store based barrier on rank: 2 (world_size={}, worker_count={})"
    assert explain_failure(text.format(2, 3)).failure_class == "mistake"
    assert explain_failure(text.format(2, 2)).failure_class == "timeout"
    assert explain_failure(text.format(4, 3)).failure_class == "timeout"


CHAIN = """
Traceback (most recent call last):
  File "/home/user/train.py", line 31, in <module>
    torch.save(state, path)
  File "/lib/torch/serialization.py", line 965, in save
    _save(obj, opened_zipfile)
OSError: [Errno 28] No space left on device

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/user/train.py", line 31, in <module>
    torch.save(state, path)
RuntimeError: the checkpoint is incomplete
"""


def test_the_whole_chain_counts() -> None:
    answer = explain_failure(CHAIN, "training")
    assert (answer.failure_class, answer.restart, answer.exception) == ("disk-full", "no", "OSError")


def test_a_root_cause_comes_before_the_complaints_of_its_peers() -> None:
    log = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "train.py", line 9, in step\n'
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:80\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 7, in step\n'
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "E1112 23:34:28 api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 2630) of binary: /usr/bin/python\n"
    )
    answer = explain_failure(log, "training")
    assert (answer.failure_class, answer.exception) == ("device-oom", "OutOfMemoryError")
    only_peers = "\n".join(line for line in log.splitlines() if "rank0" in line)
    assert explain_failure(only_peers).is_about_peers


@pytest.mark.parametrize(
    ("number", "failure_class", "restart"),
    [(79, "gpu", "elsewhere"), (48, "gpu", "elsewhere"), (31, "job", "yes"), (13, "job", "yes"), (63, "gpu", "yes")],
)
def test_an_xid_is_what_the_catalogue_says(number: int, failure_class: str, restart: str) -> None:
    line = f"[ 123.4] NVRM: Xid (PCI:0000:03:00): {number}, pid=1234, name=python, Ch 8"
    answer = explain_failure(line)
    assert (answer.failure_class, answer.restart) == (failure_class, restart)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 1 caused by previous Xid 149", ("gpu", "elsewhere")),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 1 caused by previous Xid 31", ("job", "yes")),
        ("ErrorCode:DCGM_FR_XID_ERROR GPU:4 Detected XID 31 for GPU 4 Recommended Action=NONE;", ("job", "yes")),
        ("ErrorCode:DCGM_FR_XID_ERROR GPU:4 Detected XID 79 for GPU 4", ("gpu", "elsewhere")),
    ],
)
def test_the_xid_that_counts_is_the_cause_and_dcgms_is_one_too(line: str, expected: tuple[str, str]) -> None:
    answer = explain_failure(line, "training")
    assert (answer.failure_class, answer.restart) == expected


# Texts as the sources of these programs have them, with numbers and names for their placeholders.
OF_PROGRAMS = [
    ("srun: error: Unable to contact slurm controller (connect failure)", "network", "yes"),
    ("srun: error: Unable to allocate resources: Rate limit exceeded, please retry later", "network", "yes"),
    ("sbatch: error: Batch job submission failed: More processors requested than permitted", "mistake", "no"),
    ("srun: error: task 0 launch failed: Invalid MPI plugin name", "mistake", "no"),
    ("srun: error: task 3 launch failed: Slurmd could not execve job", "host", "elsewhere"),
    ("srun: error: timeout waiting for task launch, started 3 of 8 tasks", "host", "elsewhere"),
    ("srun: error: Task launch for StepId=4.0 failed on n2: Unable to layout tasks on given cpus", "mistake", "no"),
    ("slurmstepd: error: Job 71 exceeded its time limit", "preempted", "yes"),
    ("slurmstepd: error: container_g_join failed: 119383", "host", "elsewhere"),
    ("sbatch: error: submission failed: I/O error writing script/environment to file", "disk-full", "no"),
    ("n0:7:9 [0] init.cc:99 NCCL WARN Invalid rank requested : 8/8", "mistake", "no"),
    ("n0:7:9 [0] ib/common.cc:9 NCCL WARN NET/IB : mlx5_0:1 async fatal event: x", "host", "elsewhere"),
    ("n0:7:9 [0] p2p.cc:9 NCCL WARN NET/IB: Got CQE with error (devIndex=0, req=1, comm=1 (send))", "network", "yes"),
    ("n0:7:9 [0] socket.cc:9 NCCL WARN Message truncated : received 1024 bytes instead of 256", "job", "no"),
    ("n0:7:9 [0] proxy.cc:9 NCCL WARN Socket recv failed while polling for opId=0x7f00", "secondary", "yes"),
    ("n0:7:9 [0] u.cc:9 NCCL WARN Unrecoverable error detected: malloc(size=64) returned", "host-oom", "yes"),
    ("n0: Test NCCL failure common.cu:9 'unhandled system error (run with NCCL_DEBUG=INFO)'", "network", "yes"),
    ("RuntimeError: CUDA error: operation not permitted on an event last recorded in a capturing stream", "job", "yes"),
    ("RuntimeError: CUDA error: PTX JIT compiler library not found", "host", "elsewhere"),
    ("RuntimeError: CUDA error: named symbol not found", "job", "yes"),
    ("THCudaCheck FAIL file=THC.cpp line=50 error=77 : an illegal memory access was encountered", "job", "yes"),
    ("nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1", "host", "elsewhere"),
    ("ConnectionError: Tried to launch on port `29500`, but another process is utilizing it.", "host", "yes"),
    ("slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory", "host", "elsewhere"),
    ("error: gres_device_major: stat(/dev/nvidia0): No such file or directory", "host", "elsewhere"),
    ("slurmstepd: error: common_file_write_uints: write failed: No space left on device", "host", "elsewhere"),
    ("OSError: [Errno 28] inotify watch limit reached", "mistake", "no"),
    ("GPUassert: out of memory mean.cu 377", "device-oom", "yes"),
    ("Exception: expected value at line 1 column 1", "mistake", "no"),
    ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0", "job", "no"),
    ("Job was active longer than specified deadline", "preempted", "no"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "failure_class", "restart"), OF_PROGRAMS)
def test_what_programs_say_by_their_sources_has_its_class(text: str, failure_class: str, restart: str) -> None:
    answer = explain_failure(text, "training")
    assert (answer.failure_class, answer.restart) == (failure_class, restart), answer


@pytest.mark.parametrize(
    "line",
    [
        "export NCCL_TOPO_FILE=/etc/topo.xml",
        "google: RefreshError: invalid authentication credential",
        "nvidia-container-cli: device error: 5: unknown device",
        "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused",
        "srun: error: task 0 launch failed: Unspecified error",
        "n0:7:9 [0] p2p.cc:9 NCCL WARN failed to peer with device 1(=1): 711 peer mapping resources exhausted",
        "slurmstepd: error: Could not open stdout file /scratch/u/out.txt: No such file or directory",
        "container_group_size: 4, switch_gate_loss: 0.3, mpi_global_rank: 2",
        "RuntimeError: prolog failed status=1:0 is not a label",
    ],
)
def test_lines_like_those_of_a_failed_node_leave_no_host(line: str) -> None:
    assert explain_failure(line, "training").restart != "elsewhere"


def test_every_error_of_cuda_but_four_has_an_entry_of_its_own() -> None:
    """These have several causes: invalid argument, illegal state, device not ready, operation not supported."""
    named = {
        number: explain_failure(f"RuntimeError: CUDA error: {words[-1]}", "training").name
        for number, words in failures._table().cuda_errors.items()
    }
    general = {number for number, name in named.items() if name in ("gpu-error", "exception", None)}
    assert general == {"1", "401", "600", "801"}


def test_a_warning_of_torch_explains_less_than_what_a_rank_says_of_its_peers() -> None:
    late = (
        "[rank2]: RuntimeError: [/gloo/tcp/unbound_buffer.cc:8] Timed out waiting 1800ms for recv operation to complete"
    )
    warning = "[W503 01:52:07.597517393 socket.cpp:204] The hostname of the client socket cannot be retrieved."
    assert explain_failure(f"{late}\n{warning}").failure_class == "timeout"
    assert explain_failure(warning).failure_class == "network"


def test_the_line_of_nccl_that_says_why_explains_more_than_its_result() -> None:
    result = "worker.py:45] NCCL error in: ProcessGroupNCCL.cpp:1333, internal error, NCCL version 2.18.6"
    why = "worker.py:45] Attribute busid of node nic not found"
    assert explain_failure(result).failure_class == "network"
    assert explain_failure(f"{result}\n{why}").failure_class == "mistake"


def test_why_a_communicator_was_aborted_explains_more_than_that_it_was() -> None:
    aborted = "[E ProcessGroupNCCL.cpp:461] To avoid data inconsistency, we are taking the entire process down."
    late = "[E ProcessGroupNCCL.cpp:821] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=316)"
    assert explain_failure(aborted).failure_class == "secondary"
    assert explain_failure(f"{aborted}\n{late}").failure_class == "timeout"


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("ERROR:root:Training failed: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", "job"),
        (" 36%|###6   | 908/2500 [11:18<19:50, 1.34it/s]Error: stack expects each tensor to be equal size", "job"),
        (
            " 36%|###6   | 908/2500 [11:18<19:50, 1.34it/s]slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT x",
            "preempted",
        ),
        ("mat1 and mat2 shapes cannot be multiplied", "unknown"),  # nothing says that it is an error
        ("Training failed: the blorb is glum", "unknown"),
    ],
)
def test_a_line_may_end_with_the_text_of_an_exception_and_begin_with_a_bar(line: str, failure_class: str) -> None:
    assert class_by_table(line, "training") == failure_class


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (
            "Command 'ssh -o PasswordAuthentication=no n1 hostname' returned non-zero exit status 255.",
            "hosts-without-login",
        ),
        ("Command '['/usr/bin/ssh', 'n1']' returned non-zero exit status 255.", "hosts-without-login"),
        ("Command 'ssh n1 train' returned non-zero exit status 1.", "crash"),
        ("Command '['/data/ssh-logs/train.py']' returned non-zero exit status 255.", "crash"),
    ],
)
def test_the_program_of_a_command_counts_and_its_arguments_do_not(message: str, name: str) -> None:
    classification = classify(errors_in(f"CalledProcessError: {message}"), "start")
    assert classification is not None and classification.known.name == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Connect to 169.254.0.1<40815> failed : Software caused connection abort", ("mistake", "no")),
        ("Connect to 10.169.254.1<40815> failed : Software caused connection abort", ("network", "yes")),
        ("Connect to fe80::c4eb:49ff%6<57335> failed : Network is unreachable", ("mistake", "no")),
    ],
)
def test_an_address_of_one_link_is_a_wrong_interface(text: str, expected: tuple[str, str]) -> None:
    answer = explain_failure(text, "start")
    assert (answer.failure_class, answer.restart) == expected


@pytest.mark.parametrize(
    "prefix", ["[rank3]: ", "3: ", "[default3]:", "[1,3]<stderr>:", "(RayTrainWorker pid=9, ip=10.0.0.1) "]
)
def test_prefixes_of_launchers_are_no_part_of_a_text(prefix: str) -> None:
    text = f'{prefix}Traceback (most recent call last):\n{prefix}  File "a.py", line 1\n{prefix}MemoryError'
    assert [(error.exception, error.message) for error in errors_in(text)] == [("MemoryError", "")]


def test_the_frames_show_the_phase() -> None:
    assert phase_in('  File "t.py", line 3, in training_step\n    loss.backward()') == "training"
    assert phase_in('  File "t.py", line 3, in from_pretrained') == "start"
    assert phase_in("RuntimeError: x") is None
    assert phase_in("Epoch 3: 40%| 10/25 [00:09<00:14, 1.1it/s]\nRuntimeError: x") == "training"


def test_texts_that_say_nothing_are_unknown() -> None:
    for text in ("step 3 loss 0.2", "hello\nworld"):
        answer = explain_failure(text)
        assert (answer.failure_class, answer.restart, answer.name) == ("unknown", "yes", None)
    assert classify([], None) is None
    assert fit("", "step 3") is None


def test_a_large_log_takes_seconds_at_most() -> None:
    lines = [
        f"2026-11-29 10:00:00 step {step} loss {step / 7:.3f} rank0 killed 'x' /data/ecc/{step}"
        for step in range(6_000)
    ]
    answer = explain_failure("\n".join([*lines, "RuntimeError: CUDA error: uncorrectable ECC error encountered"]))
    assert answer.name == "gpu-ecc"


def test_the_table_is_whole() -> None:
    known = known_failures()
    names = [one.name for one in known]
    assert len(names) == len(set(names))
    assert {one.failure_class for one in known} == set(CLASSES)
    for one in known:
        assert (
            one.means.endswith(".") and one.way_out.endswith((".", ")", "'")) and one.source.startswith("https://")
        ), one.name
    assert names[-1] == "exception"


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("NVRM: gspWhatever_GB999: the boot of the GSP failed", "gpu"),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.1", "unknown"),  # about the driver, and no fault
        ("step 31 failed to improve the loss", "unknown"),  # a fault, about nothing known
        ("nccl.cc:1 NCCL INFO NET/IB : P_Key changed and failed", "unknown"),  # marked as information
        ("n1:1:2 [0] NCCL WARN NET/IB : P_Key changed", "network"),
        ("NVRM: the driver is loaded\nthe copy failed", "unknown"),  # on two lines
        ("/job:worker/replica:0/task:7 has died", "secondary"),
        ("run.sh: line 3: srun: not found", "mistake"),
    ],
)
def test_a_family_is_a_line_about_something_that_says_something_of_it(line: str, failure_class: str) -> None:
    assert class_by_table(line) == failure_class


@pytest.mark.parametrize(
    "line",
    [
        "step 100 loss 2.31 grad_norm 0.8 lr 1e-4 mem 43GB",
        "WARNING:root:grad overflow, skipping step, new loss scale 32768",
        "wandb: Run summary: loss 0.1",
        "Rank 0 waiting for others at the barrier",
        "UserWarning: This DataLoader will create 16 worker processes in total",
        "WARNING: could not find the metadata file latest.txt; will start from random",
        "eval failed to improve for 3 epochs; early stopping in 2",
        "3 of 1000 samples failed to decode",
        "Setting up process group: timeout 1800 s",
        "val/acc 0.93 memory 33.1 GiB peak",
        "hooks: forward_pre_hook, backward_hook",
        "[ 22.1] mlx5_core 0000:12:00.0 ens1f0np0: Link up",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "EDAC MC1: 2 CE memory read error on CPU_SrcID#0",
        "wandb login --relogin",
        "no NaN or Inf found in 200 gradients",
        "all ranks finished; the job ends",
    ],
)
def test_a_line_of_a_healthy_job_is_no_failure(line: str) -> None:
    assert explain_failure(line).name is None


def test_a_family_explains_less_than_any_exception_but_a_fault_of_the_machine_more_than_an_unknown_one() -> None:
    service, driver = "wandb: upload timed out", "NVRM: the boot of the GSP failed"
    assert explain_failure(f"{service}\nKeyError: 'x'", "start").name == "mistake"
    assert explain_failure(f"{service}\nRuntimeError: the buffer is full", "start").name == "exception"
    assert explain_failure(f"{driver}\nKeyError: 'x'", "start").name == "mistake"
    assert explain_failure(f"{driver}\nRuntimeError: the buffer is full", "start").failure_class == "gpu"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("INVALID_ARGUMENT: x", ("mistake", "no")),
        ("UNAVAILABLE: x", ("network", "yes")),
        ("DEADLINE_EXCEEDED: x", ("timeout", "yes")),
        ("CANCELLED: x", ("secondary", "yes")),
        ("INTERNAL: x", ("unknown", "yes")),
    ],
)
def test_the_status_that_begins_a_message_is_its_class(status: str, expected: tuple[str, str]) -> None:
    answer = explain_failure(f"XlaRuntimeError: {status}", "start")
    assert (answer.failure_class, answer.restart) == expected
    assert class_by_table(f"RuntimeError: the reply was {status}", "start") == "mistake"


def test_what_a_library_requires_is_a_mistake_also_when_the_phase_is_unknown() -> None:
    answer = explain_failure("RuntimeError: the number of heads must be even")
    assert (answer.failure_class, answer.restart) == ("mistake", "no")
    assert class_by_table("RuntimeError: the number of heads is 3") == "unknown"


def test_secrets_in_a_message_are_masked() -> None:
    answer = explain_failure("RuntimeError: HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123 was refused")
    assert "hf_abc" not in answer.text


def test_the_text_of_a_native_exception_counts_and_not_its_announcement() -> None:
    """As NCCL's watchdog ends a rank (ultralytics/yolov5#12429); without a text, a crash is all that is known."""
    announced = "terminate called after throwing an instance of 'std::runtime_error'\n"
    said = "  what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLGATHER)\n"
    assert explain_failure(announced + said).failure_class == "timeout"
    assert explain_failure("[rank1]: " + announced + "[rank1]: " + said).failure_class == "timeout"
    assert explain_failure(announced).name == "crash"


@pytest.mark.parametrize(
    "message",
    [
        "[Errno 122] quota",
        "Os { code: 122, kind: FilesystemQuotaExceeded }",
        "write failed (os error 122)",
        "cannot write, errno = 122",
        "cannot write, errno: 122",
    ],
)
def test_an_errno_is_read_however_it_is_spelled(message: str) -> None:
    assert explain_failure(f"OSError: {message}", "training").failure_class == "disk-full"
    assert class_by_table(f"OSError: {message.replace('122', '1220')}", "training") == "job"


@pytest.mark.parametrize(
    "message",
    [
        "503 Server Error: x",
        "HTTP Error 503: x",
        "HTTP/1.1 503 x",
        "HTTP status 503",
        "status code: 503",
        "status=503",
        "An error occurred (503) when calling the GetObject operation",
    ],
)
def test_a_status_of_http_is_read_however_it_is_spelled(message: str) -> None:
    assert explain_failure(f"HTTPError: {message}", "training").failure_class == "network"
    refused = explain_failure(f"HTTPError: {message.replace('503', '403')}", "training")
    assert (refused.failure_class, refused.restart) == ("mistake", "no")
    assert class_by_table("HTTPError: read 503 samples", "training") == "job"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA driver error: an illegal memory access was encountered",
        "HIP error: an illegal memory access was encountered",
        "CUDA error 700 an illegal memory access was encountered",
        "Cuda failure 700",
        "CUDA error (700): x",
        "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS",
        "returned cudaErrorIllegalAddress",
        '"hipErrorIllegalAddress: x"',
        "cuda_error: code: 700, reason: an illegal memory access was encountered",
        "Check failed: error == cudaSuccess (77 vs. 0)  an illegal memory access was encountered",
        "Check failed: err == hipSuccess (700 vs. 0)",
    ],
)
def test_an_error_of_cuda_is_read_however_it_is_spelled(message: str) -> None:
    answer = explain_failure(f"RuntimeError: {message}", "training")
    assert (answer.name, answer.restart) == ("gpu-fault", "yes")


def test_a_constant_in_quotes_counts_and_a_name_of_data_does_not() -> None:
    assert explain_failure('RuntimeError: "cudaErrorECCUncorrectable"', "training").name == "gpu-ecc"
    assert class_by_table('RuntimeError: no class "uncorrectable ECC error"', "training") == "job"


@pytest.mark.parametrize(
    ("text", "failure_class"),
    [
        ("FrameworkTimeoutError: x", "timeout"),
        ("pkg.ShardConnectionError: x", "network"),
        ("pkg.TrainerConfigError: x", "mistake"),
        ("ProfileNotFound: x", "mistake"),  # no usual form of an exception's name, but a known ending
        ("pkg.WidgetError: x", "mistake"),  # any exception before the first step
    ],
)
def test_the_name_of_a_type_says_something(text: str, failure_class: str) -> None:
    assert explain_failure(text, "start").failure_class == failure_class


def test_an_exception_after_a_traceback_may_have_any_name() -> None:
    frames = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    read()\n'
    answer = explain_failure(f"{frames}mylib.Malformed: unexpected end of data\n", "start")
    assert answer.exception == "Malformed"
    assert explain_failure("note: unexpected end of data\n", "start").exception is None


def test_a_warning_is_a_line_and_no_exception() -> None:
    assert explain_failure("UserWarning: The NVIDIA driver on your system is too old", "start").failure_class == "host"


def test_nine_in_ten_lines_of_healthy_jobs_say_nothing() -> None:
    texts = rows("harmless_lines.csv")
    wrong = [row["message"] for row in texts if explain_failure(row["message"]).failure_class != "unknown"]
    assert len(wrong) <= 0.1 * len(texts), wrong


def use_weights(monkeypatch: pytest.MonkeyPatch, labels: list[tuple[str, str]], words: dict[str, list[int]]) -> None:
    """Let estimates use these words; an importance of 600 is that of a whole text. The second label begins with 0.5."""
    weights = {"source": "", "labels": labels, "bias": [0, 50], "words": words}
    monkeypatch.setattr(failure_words, "_weights", lambda: msgspec.convert(weights, failure_words._Weights))


def likelihood_of(score: float, other: float) -> object:
    return pytest.approx(1 / (1 + math.exp(other - score)))


def test_a_likelihood_is_that_of_the_words_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words of equal importance, of which one speaks for `network` by 2 and one against it by 1, worked by hand."""
    words = {"blorb": [600, 0, 200], "glum": [600, 0, -100], "wobble": [100, 0, 240]}
    use_weights(monkeypatch, [("network", "yes"), ("unknown", "yes")], words)
    found = failure_words.estimate("", "the BLORB", None)
    assert (found.failure_class, found.likelihood) == ("network", likelihood_of(2.0, 0.5))
    both = failure_words.estimate("", "the blorb is glum", None)  # each counts 1 / sqrt(2)
    assert both.likelihood == likelihood_of((2.0 - 1.0) / math.sqrt(2), 0.5)
    nothing = failure_words.estimate("", "no word of it", None)
    assert (nothing.failure_class, nothing.likelihood) == ("unknown", likelihood_of(0.5, 0.0))
    little = failure_words.estimate("", "wobble", None)  # it counts a sixth: one word that is not rare says little
    assert (little.failure_class, little.likelihood) == ("unknown", likelihood_of(0.5, 2.4 / 6))


def test_what_a_weak_rule_says_is_more_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    use_weights(monkeypatch, [("network", "yes"), ("mistake", "no")], {"blorb": [600, 0, 200]})
    assert failure_words.estimate("", "blorb", None, ("mistake", "no")).likelihood == likelihood_of(2.0, 0.5 + 1.5)
    disputed = failure_words.estimate("", "no word of it", None, ("network", "yes"))
    assert (disputed.failure_class, disputed.likelihood) == ("network", likelihood_of(1.5, 0.5))


def test_an_estimate_leaves_a_host_at_once_only_from_a_likelihood_of_90_percent_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = [("host", "elsewhere"), ("healthy", "yes")]
    use_weights(monkeypatch, labels, {"blorb": [600, 0, 268], "glum": [600, 0, 272]})
    almost = failure_words.estimate("", "blorb", None)
    assert 0.89 < almost.likelihood < 0.9 and (almost.failure_class, almost.restart) == ("host", "yes")
    sure = failure_words.estimate("", "glum", None)
    assert sure.likelihood > 0.9 and (sure.failure_class, sure.restart) == ("host", "elsewhere")
    doubtful = failure_words.estimate("", "no word of it", None, ("host", "elsewhere"))  # a weak rule's, too
    assert (doubtful.failure_class, doubtful.restart) == ("host", "yes")
    assert failure_words.estimate("", "no word of it", None).failure_class == "unknown"  # a healthy line


def test_texts_without_known_words_are_estimated_and_others_are_not() -> None:
    answers = [explain_failure(text_of(row)) for row in rows("fresh_texts.csv")[:80]]
    estimates = [answer.likelihood for answer in answers if answer.likelihood is not None]
    assert len(estimates) >= 4 and min(estimates) >= LEAST_LIKELY
    assert all(answer.name is None for answer in answers if answer.likelihood is not None)


def test_an_estimate_counts_only_from_the_least_likelihood_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def likely(likelihood: float) -> None:
        found = WordEstimate(failure_class="host", restart="yes", likelihood=likelihood)
        monkeypatch.setattr("flatout.keep.explain_failure.estimate", lambda *_: found)

    line, error = "the blorb is glum", "RuntimeError: the blorb is glum"
    likely(0.36)
    assert explain_failure(line).failure_class == explain_failure(error).failure_class == "host"
    likely(0.34)
    assert explain_failure(line).failure_class == explain_failure(error).failure_class == "unknown"


def test_an_unknown_that_a_rule_states_is_overruled_from_60_percent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def likely(likelihood: float) -> None:
        found = WordEstimate(failure_class="host", restart="yes", likelihood=likelihood)
        monkeypatch.setattr("flatout.keep.explain_failure.estimate", lambda *_: found)

    stated, weak = "srun: error: nid1: task 0: Exited with exit code 1", "wandb: upload timed out"
    likely(0.61)
    assert explain_failure(stated).failure_class == "host"
    likely(0.59)
    assert explain_failure(stated).failure_class == "unknown"
    assert explain_failure(weak).failure_class == "host"


@pytest.mark.parametrize(
    ("text", "is_estimated"),
    [
        ("RuntimeError: the blorb is glum", True),  # a type that any failure may have
        ("wandb: upload timed out", True),  # a family
        ("srun: error: nid1: task 0: Exited with exit code 1", True),  # words that have many causes
        ("KeyError: 'blorb'", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_an_estimate_counts_only_where_no_strong_rule_does(
    monkeypatch: pytest.MonkeyPatch, text: str, is_estimated: bool
) -> None:
    found = WordEstimate(failure_class="preempted", restart="no", likelihood=0.9)
    monkeypatch.setattr("flatout.keep.explain_failure.estimate", lambda *_: found)
    assert (explain_failure(text, "start").failure_class == "preempted") == is_estimated


def test_the_words_that_count_are_those_around_the_line_that_decides_or_the_last_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def estimated(exception: str, message: str, *_: object) -> WordEstimate:
        compared.append(message)
        return WordEstimate(failure_class="unknown", restart="yes", likelihood=0.9)

    monkeypatch.setattr("flatout.keep.explain_failure.estimate", estimated)
    lines = [f"line {i}" for i in range(100)]
    explain_failure("\n".join([*lines[:50], "wandb: upload timed out", *lines[50:]]))
    explain_failure("\n".join(lines))
    assert compared[0].splitlines() == [*lines[47:50], "wandb: upload timed out", *lines[50:53]]
    assert compared[1].splitlines() == lines[60:]


@pytest.mark.parametrize(
    ("line", "severity", "said"),
    [
        ("E1224 22:35:53.165575   26868 real_program.cc:1331] Halt is unexpected", "E", "Halt is unexpected"),
        ("2023-07-19 22:08:36.875173: F ./core/util/gpu_config.h:174] Check failed", "F", "Check failed"),
        ("n5:90736:91655 [0] include/socket.h:403 NCCL WARN Connect failed", "", "NCCL WARN Connect failed"),
        ("[1,2]<stdout>:pod-0:75:95 [2] graph/xml.h:101 NCCL WARN no arch", "", "NCCL WARN no arch"),
        ("Oct 16 20:47:19 V09 kernel: INFO: task blocked", "", "INFO: task blocked"),
        ("[ 1843.308145] NVRM: GPU lost", "", "NVRM: GPU lost"),
        ("Error: 3 of 4 ranks", "", "Error: 3 of 4 ranks"),
    ],
)
def test_what_stands_before_each_line_of_a_log_is_not_what_it_says(line: str, severity: str, said: str) -> None:
    assert without_prefixes(line) == (severity, said)


def test_what_counts_of_a_text() -> None:
    words = failure_words.words_of("ConnectionError", "peer 7 timed out (exit code 137, HTTP Error 503)", "start")
    assert {"connec", "type:connec", "type@network", "type@network at=start", "at=start exception"} <= words
    assert {"code=137", "http=503", "http=5xx", "@peers", "@late", "@peers late", "timed out"} <= words
    assert not {"code=7", "7"} & words and "severity=E" in failure_words.words_of("", "E0101 00:00:00 a.cc:1] x", None)


def test_case_and_endings_of_words_hardly_count() -> None:
    words_of = failure_words.words_of
    assert words_of("", "Workers KILLED", None) == words_of("", "workers killed", None)
    assert "connec" in words_of("", "connecting", None) and "connec" in words_of("", "connection", None)


def test_a_full_disk_in_a_call_for_shared_memory_is_full_shared_memory() -> None:
    frames = 'Traceback (most recent call last):\n  File "/lib/multiprocessing/synchronize.py", line 57, in __init__\n'
    call = "    sl = self._semlock = _multiprocessing.SemLock(\n"
    error = "OSError: [Errno 28] No space left on device"
    assert explain_failure(frames + call + error).failure_class == "shm-full"
    assert explain_failure(frames + "    self._file.write(data)\n" + error).failure_class == "disk-full"


def test_the_file_that_a_line_comes_from_is_not_what_it_says() -> None:
    said = "NCCL WARN Timeout Detected! Transport: NET"
    assert fit("", f"<proxy.cc:812> {said}") == fit("", f"<net.cc:9> {said}")
