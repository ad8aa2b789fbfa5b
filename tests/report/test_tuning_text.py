from __future__ import annotations

import html
import json
import re
import shlex

import msgspec
import pytest
from tests.report import tuning_builder as builder

from flatout import units
from flatout.emit.heading import heading
from flatout.records.step_time import StepTime, WorkTime
from flatout.records.tuning import Screened, TriedSet, TuneResult, TuningEnd
from flatout.records.verdict import Verdict
from flatout.report.terminal import TextStyle
from flatout.report.tuning_html import tuning_html
from flatout.report.tuning_json import tuning_json
from flatout.report.tuning_next import next_words
from flatout.report.tuning_phrases import OBJECTIVE_WORDS, duration, headline, is_better, why_ended
from flatout.report.tuning_ratios import gain, ratio, ratio_estimate
from flatout.report.tuning_rows import OUTCOME_MEANINGS
from flatout.report.tuning_text import MOST_TRIED, tuning_text
from flatout.tune.options import OBJECTIVES, TuneOptions, tune_request

OUT = "flatout-out/tune-1"


def text_of(result: TuneResult, **style: object) -> str:
    return tuning_text(result, OUT, style=TextStyle(**style))  # type: ignore[arg-type]


def section(text: str, title: str) -> str:
    """The lines under a title."""
    lines = text.split("\n\n")
    return next(lines_of for lines_of in lines if lines_of.startswith(f"{title} ─"))


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(params=sorted(builder.ALL))
def result(request: pytest.FixtureRequest) -> TuneResult:
    return builder.ALL[request.param]()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(result: TuneResult, width: int) -> None:
    if result.tuning.command == builder.hostile().tuning.command:  # a command is only broken between its words
        result = msgspec.structs.replace(result, tuning=msgspec.structs.replace(result.tuning, command=("python",)))
    assert max(map(len, text_of(result, width=width).splitlines())) <= width


def test_no_control_character_of_the_job_reaches_the_terminal() -> None:
    text = text_of(builder.hostile(), has_unicode=False)
    assert text.isascii()
    assert "\x1b" not in text


def test_secrets_in_the_command_are_masked() -> None:
    assert "hunter2" not in text_of(builder.hostile())


def test_the_headline_has_the_ratio_its_interval_and_the_pairs() -> None:
    first = text_of(builder.better()).splitlines()[0]
    assert first == "3.21x faster (3.13-3.29), confirmed on 6 fresh pairs; 254 ms -> 79.0 ms per step"


def test_the_headline_says_where_the_gain_is_only_of_regular_steps() -> None:
    """No trial of an arm reached the end of an epoch, so the gain of the job is not known."""
    whole = builder.better()
    verdict = msgspec.structs.replace(whole.tuning.verdict, unmeasured_work=("epoch_end", "evaluation"))
    of_steps = msgspec.structs.replace(whole, tuning=msgspec.structs.replace(whole.tuning, verdict=verdict))
    first = text_of(of_steps).split("\n\n")[0].replace("\n", " ")
    said = "without the time of each epoch's boundary (evaluation), which is unknown with the changes"
    assert first.startswith(f"3.21x faster (3.13-3.29) {said}, confirmed on 6 fresh pairs")
    assert any("some steps (epoch end, evaluation)" in line for line in heading(of_steps.tuning))
    assert not any("some steps" in line for line in heading(whole.tuning))


def test_no_ratio_is_printed_without_an_interval_unless_that_is_said() -> None:
    text = text_of(builder.undecided())
    assert "1.04x (no interval)" in joined(text)
    assert text.startswith("Not confirmed: ")
    assert "faster" not in text.split("\n\n")[0]


def test_what_won_has_prediction_measurement_and_interval() -> None:
    won = section(text_of(builder.better()), "Accepted changes")
    assert re.search(r"nccl-sockets=2x2x8 +exact +2.90x \(2.20-3.60\) +2.71x \(2.66-2.76\)", won)
    assert re.search(r"all, against the baseline +3.21x \(3.13-3.29\)", won)


def test_changes_that_were_confirmed_together_share_a_row() -> None:
    won = section(text_of(builder.better()), "Accepted changes")
    assert re.search(r"ddp-bucket-mb=100 \+ +exact +unknown +1.18x \(1.15-1.21\)\n  optimizer-fused\n", won)
    assert "measured only together" in won


def test_changes_that_were_predicted_together_show_that_and_no_part_of_them_does() -> None:
    result = builder.better()
    together = next(one for one in result.tried if len(one.changes) == 2)
    known = msgspec.structs.replace(together, prediction=builder.prediction(together.name, 1.25, 1.1, 1.4))
    tried = tuple(known if one is together else one for one in result.tried)
    won = section(text_of(msgspec.structs.replace(result, tried=tried)), "Accepted changes")
    assert re.search(r"ddp-bucket-mb=100 \+ +exact +1.25x \(1.10-1.40\) +1.18x \(1.15-1.21\)\n  optimizer-fused\n", won)
    report = json.loads(tuning_json(msgspec.structs.replace(result, tried=tried), ["flatout"]))
    parts = [one for one in report["changes"] if one["measured_in"] is not None]
    assert [one["predicted_speedup"] for one in parts] == [None, None], "the prediction for each alone is unknown"
    assert next(one for one in report["tried"] if one["name"] == together.name)["predicted_speedup"] == 1.25


def test_an_unsafe_change_is_called_unsafe_and_has_no_speed() -> None:
    text = text_of(builder.unsafe())
    assert text.startswith("No change can be used: 1 unsafe")
    assert re.search(r"nccl-protocol=LL128 +exact +unsafe +the mean loss differs by 31 %", text)
    for speed in ("8.88", "8.80", "7.77", "slow"):
        assert speed not in text
    assert builder.unsafe().prediction_errors == ()


def test_nothing_better_is_a_normal_end_with_the_next_safety_class() -> None:
    text = text_of(builder.nothing())
    assert text.startswith("No change helps: nothing was better than the baseline\n")
    assert "flatout tune --allow rounding -- torchrun" in text
    assert "Accepted changes" not in text


def test_a_budget_that_ended_says_nothing_of_what_was_not_reached() -> None:
    cut = msgspec.structs.replace(builder.nothing(), end=builder.OUT_OF_TIME)
    text = text_of(cut)
    assert joined(text).startswith(
        "No change was shown to help before the tuning run ended: the budget of 600 s is used up"
    )
    assert "No change helps" not in text and "flatout tune --budget 20m" in text
    untried = msgspec.structs.replace(cut, tried=())
    assert headline(untried) == "no change was tried: the budget of 600 s is used up"


def test_what_was_not_shown_by_itself_is_said() -> None:
    made = builder.better()
    assert "Not shown alone" not in text_of(made)
    each = [
        msgspec.structs.replace(one, is_shown_alone=one.change.name != "optimizer-fused") for one in made.tuning.each
    ]
    made = msgspec.structs.replace(made, tuning=msgspec.structs.replace(made.tuning, each=tuple(each)))
    assert "Not shown alone: optimizer-fused." in joined(text_of(made))
    page = tuning_html(made, ["flatout", "tune"], "out")
    assert "Not shown alone: optimizer-fused." in joined(page)
    changes = json.loads(tuning_json(made, ["flatout", "tune"]))["changes"]
    assert {one["name"]: one["is_shown_alone"] for one in changes}["optimizer-fused"] is False
    assert sum(one["is_shown_alone"] for one in changes) == len(changes) - 1


def test_the_next_command_runs_what_won() -> None:
    assert next_words(builder.better(), OUT)[:5] == ("flatout", "run", "--config", f"{OUT}/tuned.toml", "--")
    assert next_words(builder.better(), OUT)[5:] == builder.COMMAND
    assert text_of(builder.better()).endswith(
        "  flatout run --config flatout-out/tune-1/tuned.toml -- torchrun --standalone \\\n"
        "      --nproc-per-node 4 train.py --out '{trial_dir}'\n"
    )


@pytest.mark.parametrize("make", [builder.undecided, builder.out_of_budget, builder.many])
def test_what_is_open_is_given_more_time(make: object) -> None:
    words = next_words(make(), OUT)  # type: ignore[operator]
    assert words[:3] == ("flatout", "tune", "--budget")


def test_where_nothing_was_worth_a_trial_more_time_is_not_offered() -> None:
    """The few trials that such a tuning runs leave the noise unknown, which decides nothing there."""
    alone = msgspec.structs.replace(builder.nothing(), tried=(), floor=None)
    assert alone.end.ended_by == "no_candidates"
    assert next_words(alone, OUT)[:4] == ("flatout", "tune", "--allow", "rounding")
    assert "--budget" in next_words(msgspec.structs.replace(alone, end=builder.OUT_OF_TIME), OUT)


GIVEN = tune_request(
    TuneOptions(
        budget_s=600.0,
        max_trials=40,
        num_steps=20,
        allowed_safety="rounding",
        objective="step_s",
        knobs=("batch={8,16}:--batch-size={}", "lr/semantic={1,2}:--lr={}"),
        sbatch_options=("--partition=gpu", "--comment=two words"),
    ),
    0,
)


def test_what_its_budget_ended_goes_on_in_its_folder_with_all_that_was_given() -> None:
    result = msgspec.structs.replace(
        builder.out_of_budget(),
        request=GIVEN,
        allowed_safety="rounding",
        took_s=590.0,
        end=builder.OUT_OF_TIME,
    )
    words = next_words(result, "my out")
    options, command = words[2 : words.index("--")], words[words.index("--") + 1 :]
    assert words[:2] == ("flatout", "tune") and command == builder.COMMAND
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--out": "my out",
        "--budget": "20m",
        "--trials": "40",
        "--allow": "rounding",
        "--knob": "lr/semantic={1,2}:--lr={}",  # the last of two
        "--objective": "steps/s",
        "--steps": "20",
        "--warmup": "0",
        "--launcher": "slurm",
        "--sbatch-options": "--partition=gpu '--comment=two words'",
    }
    assert options.count("--knob") == 2
    shown = text_of(result).partition("Next")[2].partition("\n")[2].replace("\\\n", " ")
    assert tuple(shlex.split(shown)) == next_words(result, OUT)


def test_what_its_trials_ended_is_given_more_trials() -> None:
    made = msgspec.structs.replace(
        builder.out_of_budget(), request=GIVEN, end=TuningEnd(ended_by="trial_budget", limit=40)
    )
    words = next_words(made, OUT)
    assert words[words.index("--trials") + 1] == "80"
    assert words[words.index("--budget") + 1] == "20m"


def test_what_ended_by_itself_is_tuned_anew_with_all_that_was_given() -> None:
    given = tune_request(TuneOptions(budget_s=600.0, knobs=("batch={8}:--b={}",)), None)
    words = next_words(msgspec.structs.replace(builder.nothing(), request=given), OUT)
    expected = ("--budget", "600s", "--allow", "rounding", "--knob", "batch={8}:--b={}")
    assert words[2 : words.index("--")] == expected


def test_files_that_were_to_be_written_are_by_the_next_command_too() -> None:
    for is_asked in (False, True):
        given = tune_request(TuneOptions(budget_s=600.0), None, applies=is_asked)
        result = msgspec.structs.replace(builder.out_of_budget(), request=given, end=builder.OUT_OF_TIME)
        words = next_words(result, OUT)
        assert ("--apply" in words[: words.index("--")]) is is_asked


def test_changes_that_are_worse_together_are_not_to_be_used() -> None:
    text = text_of(builder.worse())
    assert joined(text).startswith(
        "Do not use the changes: together they are worse, 1.09x slower (1.06-1.11) on 6 fresh pairs"
    )
    assert "flatout run" not in text
    assert "Accepted changes" not in text


def test_with_rounding_allowed_and_nothing_won_the_next_step_is_a_profile() -> None:
    result = msgspec.structs.replace(builder.nothing(), allowed_safety="rounding")
    assert next_words(result, OUT)[:3] == ("flatout", "profile", "--")


def test_the_next_tuning_keeps_the_objective() -> None:
    result = msgspec.structs.replace(builder.nothing(), objective="peak_memory_bytes")
    assert "--objective memory" in " ".join(next_words(result, OUT))


def test_objectives_are_named_as_the_option_names_them() -> None:
    for name, objective in OBJECTIVES.items():
        assert OBJECTIVE_WORDS[objective] == name


def test_every_outcome_has_a_meaning() -> None:
    outcomes = msgspec.inspect.type_info(TriedSet).fields  # type: ignore[attr-defined]
    outcome = next(field.type for field in outcomes if field.name == "outcome")
    assert set(outcome.values) == set(OUTCOME_MEANINGS)


def test_memory_is_told_in_per_cent_and_no_prediction_of_time_is_set_beside_it() -> None:
    text = joined(text_of(builder.memory()))
    assert text.startswith(
        "44.0 % less peak memory (43.8 % to 44.2 %), confirmed on 6 fresh pairs; 30.9 GiB -> 17.3 GiB"
    )
    assert "1.20x" not in text
    assert "A step: 254 ms at baseline, 239 ms with the changes." in text
    assert builder.memory().prediction_errors == ()


def test_what_is_unknown_is_said_to_be_unknown() -> None:
    text = joined(text_of(builder.out_of_budget()))
    for words in (
        "No change was tried",
        "The noise floor is unknown",
        "A step: unknown. Peak memory: unknown.",
        "Ended because all 2 trials were made. 2 trials, in 31 s.",
    ):
        assert words in text


def test_left_out_pairs_and_resumed_trials_are_told() -> None:
    text = joined(text_of(builder.better()))
    assert "Invalid: 1 pair (another process kept 3.1 cores busy)." in text
    assert "61 trials, 12 of them from the journal, in 9 min 58 s." in text
    assert "in the order AB BA AB BA AB BA (A: baseline)" in text
    assert "at most 5.0 %" in text
    assert "Predictions were off by 5.9 % (median absolute error of 2 predictions)." in text
    assert "2 of 2 measured values are in the predicted interval." in text


def test_predicted_intervals_are_set_beside_what_they_promise_and_what_that_rests_on() -> None:
    result = builder.better()
    narrow = msgspec.structs.replace(builder.prediction("nccl-sockets=2x2x8", 2.9, 2.8, 3.0), num_behind=25)
    tried = [
        msgspec.structs.replace(one, prediction=narrow) if one.name == narrow.change else one for one in result.tried
    ]
    text = joined(text_of(msgspec.structs.replace(result, tried=tuple(tried))))
    assert "1 of 2 measured values are in the predicted interval, which should hold 90" in text
    assert "judging by 25 earlier predictions." in text


def test_a_candidate_that_was_not_adopted_shows_its_prediction_beside_its_measurement() -> None:
    slower = builder.tried(
        "nccl-channels=8",
        "not better",
        screened=0.8,
        reason="0.80x in its own trial",
        prediction=builder.prediction("nccl-channels=8", 1.5, 0.8, 3.2),
    )
    text = joined(text_of(msgspec.structs.replace(builder.better(), tried=(slower,))))
    assert re.search(r"0\.80x in its own trial; predicted\s+1\.50x", re.sub(r"\s+", " ", text))


def test_of_many_candidates_the_rest_is_counted_by_outcome() -> None:
    text = text_of(builder.many())
    assert f"and {60 - MOST_TRIED} more, in tuning.json: " in joined(text)
    assert len(text.splitlines()) < 200
    assert "and 10 more, in tuning.json" in text


def test_a_set_that_failed_in_the_end_is_not_claimed() -> None:
    better = builder.better()
    empty = msgspec.structs.replace(better.tuning, changes=builder.change_set(()), each=(), verdict=None)
    text = text_of(msgspec.structs.replace(better, tuning=empty))
    assert text.startswith("No change is kept: ")
    assert "better in repeated trials, but not in the final set" in joined(text)
    assert "flatout run" not in text


def test_a_step_of_more_samples_is_not_set_beside_a_speedup() -> None:
    result = msgspec.structs.replace(builder.better(), tuned_step_s=0.4)
    assert headline(result) == "3.21x faster (3.13-3.29), confirmed on 6 fresh pairs"


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (builder.verdict("better", 1.013, 1.004, 1.022), "1.013x faster (1.004-1.022)"),
        (builder.verdict("better", 1.83, 1.79, 1.87), "1.83x faster (1.79-1.87)"),
        (builder.verdict("better", 31.26, 30.1, 32.4), "31.3x faster (30.1-32.4)"),
        (builder.verdict("worse", 0.8, 0.75, 0.86), "1.25x slower (1.16-1.33)"),
        (
            builder.verdict("worse", 0.8, 0.75, 0.85, objective="j_per_sample"),
            "25 % more energy per sample (18 % to 33 %)",
        ),
    ],
)
def test_a_gain_in_plain_words(verdict: Verdict, words: str) -> None:
    assert str(gain(verdict)) == words


def test_a_ratio_that_is_not_one_never_reads_as_one() -> None:
    assert ratio(1.004) == "1.004x"
    assert ratio(1.0) == "1.00x"
    assert str(ratio_estimate(1.002, None)) == "1.002x (no interval)"


@pytest.mark.parametrize(
    ("value_s", "text"), [(3.21, "3.21 s"), (45, "45 s"), (598, "9 min 58 s"), (7500, "2 h 05 min")]
)
def test_durations_are_in_words(value_s: float, text: str) -> None:
    assert duration(value_s) == text


def test_only_a_better_verdict_is_better() -> None:
    assert [name for name, make in builder.ALL.items() if is_better(make())] == [
        "better",
        "corrected",
        "memory",
        "hostile",
    ]


def test_what_was_tried_and_not_reached_is_told_and_not_called_untried() -> None:
    one = builder.tried("ddp-bucket=50", "not reached", reason="1.37x in its own trial; no pairs were run",
                        screened=1.37)  # fmt: skip
    failed = builder.tried("dataloader-workers=1", "failed", reason="exit code 1: ValueError: no workers")
    cut = {"end": TuningEnd(ended_by="time_budget", limit=50)}
    alone = msgspec.structs.replace(builder.nothing(), tried=(one,), **cut)
    assert headline(alone) == "no change was shown to help before the tuning run ended: the budget of 50 s is used up"
    assert re.search(r"ddp-bucket=50 +exact +not reached +1.37x in its own trial", text_of(alone))
    both = msgspec.structs.replace(alone, tried=(failed, one))
    assert headline(both) == "no change was shown to help before the tuning run ended: 1 failed, and 1 not reached"
    assert headline(msgspec.structs.replace(both, tried=(failed,))) == "no change can be used: 1 failed"
    undecided = builder.tried("nccl-channels=8", "not confirmed", screened=1.2, reason="1 pair counts",
                              verdict=builder.verdict("undecided", 1.2, num_pairs=2))  # fmt: skip
    assert headline(msgspec.structs.replace(alone, tried=(undecided, failed, one))) == (
        "no change is shown to help: 1 of 2 stayed undecided, and 1 more was not reached"
    )


def test_pairs_of_an_undecided_change_that_were_left_out_are_told_with_the_reason() -> None:
    found = builder.verdict("undecided", None, num_pairs=0, num_void=3, void_reasons=("others kept 1.2 cores busy",),
                            reason="no pairs count, and the first interim analysis is at 4")  # fmt: skip
    one = builder.tried("dataloader-workers=1", "not confirmed", screened=2.1, verdict=found, reason=found.reason)
    text = joined(text_of(msgspec.structs.replace(builder.nothing(), tried=(one,))))
    assert "(3 pairs invalid: others kept 1.2 cores busy)" in re.sub(r"\s+", " ", text)


def test_a_gain_that_is_quoted_lower_than_the_mean_of_its_pairs_says_so() -> None:
    text = re.sub(r"\s+", " ", joined(text_of(builder.corrected())))
    assert "1.03x faster (1.01-1.10), confirmed on 20 fresh pairs" in text
    assert (
        "Trials of changes judged better overstate the difference on average, so the ratio is corrected; their plain"
        " mean is 1.05x faster."
    ) in text
    assert "plain mean" not in joined(text_of(builder.better()))


def test_the_error_of_predictions_is_told_with_and_without_what_was_learned_and_beside_single_trials() -> None:
    """Replayed 2.0, corrected to 2.8, measured about 2.7; of a trial alone predicted 1.5, measured 1.2."""
    result = builder.better()
    assert "without the history of earlier tunings" not in joined(text_of(result))
    taught = msgspec.structs.replace(builder.prediction("nccl-sockets=2x2x8", 2.8, 2.0, 3.6), correction=1.4)
    assert result.tried[0].verdict is not None
    measured = result.tried[0].verdict.speedup
    assert measured is not None
    (one,) = (msgspec.structs.replace(row, prediction=taught) for row in result.tried[:1])
    trials = tuple(
        Screened(prediction=builder.prediction(name, 1.5, 1.0, 2.0), speedup=1.2, sd=0.01)
        for name in ("ddp-bucket=50", "ddp-bucket=50", taught.change)
    )
    result = msgspec.structs.replace(result, tried=(one,), screened=trials)
    with_it, without = abs(2.8 / measured - 1), abs(2.0 / measured - 1)
    text = joined(text_of(result))
    assert (
        f"Predictions were off by {units.percent(with_it)} (median absolute error of 1 prediction), and"
        f" {units.percent(without)} without the history of earlier tunings; by 25 % compared with one trial each,"
        " whose noise is included (median of 1 more)."
    ) in re.sub(r"\s+", " ", text)
    told = json.loads(tuning_json(result, ["flatout"]))
    assert told["median_prediction_error"] == pytest.approx(with_it)
    assert told["median_prediction_error_without_history"] == pytest.approx(without)
    assert (told["median_screening_error"], told["num_screening_predictions"]) == (pytest.approx(0.25), 1)


@pytest.mark.parametrize(("bound", "is_said"), [(2.71, False), (2.70, True)])
def test_a_gain_above_the_cost_of_its_findings_is_explained(bound: float, is_said: bool) -> None:
    """The first change was measured at 2.71x."""
    better = builder.better()
    first = msgspec.structs.replace(better.tried[0], bound=bound, prediction=None)
    result = msgspec.structs.replace(better, tried=(first, *better.tried[1:]))
    for shown in (text_of(result), tuning_html(result, ["flatout", "tune"], OUT)):
        words = " ".join(re.sub(r"<[^>]+>", "", shown).split())
        assert ("brought 2.71x (2.66-2.76), more than the 2.70x that its findings cost" in words) == is_said


@pytest.mark.parametrize(("bound", "is_said"), [(1.61, False), (1.49, True)])
@pytest.mark.parametrize("is_judged", [True, False])
def test_a_bound_below_what_an_undecided_change_measured_is_never_left_without_a_word(
    bound: float, is_said: bool, is_judged: bool
) -> None:
    undecided = builder.verdict("undecided", 1.6, 0.9, 2.8) if is_judged else None
    change = builder.tried("dataloader-workers=4", "not confirmed", bound=bound, screened=1.6, verdict=undecided)
    result = msgspec.structs.replace(builder.better(), tried=(*builder.better().tried, change))
    how = "1.60x (0.90-2.80), undecided" if is_judged else "1.60x in one trial"
    for shown in (text_of(result), tuning_html(result, ["flatout", "tune"], OUT)):
        words = " ".join(re.sub(r"<[^>]+>", "", shown).split())
        assert (f"measured {how}: more than the 1.49x that its findings cost" in words) == is_said


def test_the_parts_of_a_step_are_in_text_html_and_json() -> None:
    end = WorkTime(kinds=("epoch_end", "evaluation"), extra_s=2.6, period_steps=15)
    before = StepTime(step_s=0.176 + 2.6 / 15, regular_s=0.176, work=(end,))
    shorter = msgspec.structs.replace(end, extra_s=2.2)
    after = StepTime(step_s=0.063 + 2.2 / 15, regular_s=0.063, work=(shorter,))
    result = msgspec.structs.replace(
        builder.better(),
        baseline_step=before,
        tuned_step=after,
        baseline_step_s=before.step_s,
        tuned_step_s=after.step_s,
    )
    text = joined(text_of(result))
    assert "349 ms -> 210 ms per step" in text
    assert "Regular step: 176 ms -> 63.0 ms." in text
    assert "Each epoch's boundary (evaluation), every 15 steps: 2.60 s -> 2.20 s more." in text
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", tuning_html(result, ["flatout", "tune"], OUT))).split())
    assert "Each epoch's boundary (evaluation), every 15 steps: 2.60 s → 2.20 s more." in words
    told = json.loads(tuning_json(result, ["flatout"]))
    assert told["baseline_step"]["step_s"] == pytest.approx(told["baseline_step_s"])
    assert told["tuned_step"]["work"][0]["extra_s"] == 2.2


@pytest.mark.parametrize(
    ("left_s", "sentence"),
    [
        (137.2, "137 s of the budget of 270 s were left, and the next trials take 154 s"),
        (27.1, "27 s of the budget of 270 s were left, and the next trials take 154 s"),
        (26.9, "the budget of 270 s is used up"),
        (0.0, "the budget of 270 s is used up"),
    ],
)
def test_time_that_was_left_is_not_called_used_up(left_s: float, sentence: str) -> None:
    assert why_ended(TuningEnd(ended_by="time_budget", limit=270, left_s=left_s, needed_s=154.2)) == sentence
