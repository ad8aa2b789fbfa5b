#!/usr/bin/env bash
# A ResNet-50 on JPEG files on one GPU: from starved to GPU-bound by what `flatout data profile` advises, proven by `flatout tune`.
#
#   benchmarks/gpu_resnet_data.sh SCRIPTS OUT STEP...
#
# SCRIPTS holds a checkout of pytorch/examples (examples/), whose ImageNet script runs unmodified, with two loader workers and
# batches of 128. The steps, in this order, in one call or several:
#   profile  `flatout data profile` of one epoch, then of one with the number of workers that it advises
#   tune     `flatout tune` with two workers, then longer starts, untouched and with what it accepted (longer_starts.py)
# OUT receives the logs and results; the small ones are also put into OUT/kept, or into the folder that KEPT names, also when
# the script is ended by SIGTERM. BUDGET (300s) is that of the tuning, LONGER (90) the seconds of each longer start, FLATOUT the
# command (flatout). On an H200 with 16 cores, `profile` should take about two minutes and `tune` nine.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scripts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
kept=${KEPT:-$out/kept}
flatout=${FLATOUT:-flatout}
images="$scripts/jpeg"
long="$scripts/jpeg_long" # four times the files, by links: an epoch of 120 steps, so that its ends are a small part
script="$scripts/examples/imagenet"
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}

keep() {
    mkdir -p "$kept"
    for file in profile.json profile.txt advised.json advised.txt data_summary.json resnet_starved.log resnet_starved.longer.json; do
        [ -e "$out/$file" ] && cp "$out/$file" "$kept/"
    done
    [ -e "$out/resnet_starved/tuning.json" ] && cp "$out/resnet_starved/tuning.json" "$kept/resnet_starved.json"
}
trap keep EXIT
trap 'exit 143' TERM

make_data() {
    [ -e "$images" ] || python "$here/public_script_data.py" images "$images" || exit 2
    [ -e "$long" ] && return
    python - "$images" "$long" <<'END' || exit 2
import os, sys
from pathlib import Path
source, target = Path(sys.argv[1]), Path(sys.argv[2])
for path in source.glob("*/*/*.jpeg"):
    part, of_class = path.parts[-3:-1]
    folder = target / part / of_class
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(4 if part == "train" else 1):
        os.link(path, folder / f"{number}-{path.name}")
END
}

profiled() { # NAME WORKERS: profile one epoch; the result as JSON and as text
    local began=$SECONDS
    (cd "$script" && $flatout data profile --force --json --out "$out/$1.recording" -- python main.py --arch resnet50 \
        --epochs 1 --batch-size 128 --workers "$2" "$long") >"$out/$1.log" 2>&1 </dev/null
    echo "$1, $2 workers: code $?, $((SECONDS - began)) s"
    $flatout data show "$out/$1.recording" --json >"$out/$1.json"
    $flatout data show "$out/$1.recording" >"$out/$1.txt"
}

advice() { # the number of workers that the profile advises; empty if it advises none
    python -c 'import json, sys
print(next((str(cause["workers"]) for cause in json.load(open(sys.argv[1]))["causes"] if cause["workers"]), ""))' "$out/profile.json"
}

summarize() { # rates and causes before and after, and what was predicted
    python - "$out" <<'END'
import json, sys
from pathlib import Path
out = Path(sys.argv[1])
summary = {}
for name in ("profile", "advised"):
    if not (out / f"{name}.json").exists():
        continue
    profile = json.loads((out / f"{name}.json").read_text())
    (rank,) = profile["ranks"]
    summary[name] = {
        "workers": rank["num_workers"],
        "cores": rank["cores_allowed"],
        "training_samples_per_s": rank["samples_per_step"] / rank["step_s"],
        "share_of_step_waiting": rank["loader_wait_s"] / rank["step_s"],
        "steady_share_waiting": (rank["steady_wait_s"] or 0.0) / rank["step_s"],
        "causes": [cause["name"] for cause in profile["causes"]],
        "advised_workers": next((cause["workers"] for cause in profile["causes"]), None),
        "predicted": {speed["num_workers"]: round(speed["training_samples_per_s"], 1) for speed in rank["speeds"]},
        "rates": {rate["name"]: rate["samples_per_s"] for rate in rank["rates"]},
    }
(out / "data_summary.json").write_text(json.dumps(summary, indent=1) + "\n")
print(json.dumps(summary, indent=1))
END
}

make_data
for step in "$@"; do
    case $step in
    profile)
        profiled profile 2
        workers=$(advice)
        [ -n "$workers" ] && profiled advised "$workers"
        summarize
        ;;
    tune)
        LONGER=${LONGER:-90} "$here/gpu_tune_jobs.sh" "$scripts" "$out" "${BUDGET:-300s}" resnet_starved
        ;;
    *)
        echo "there is no step $step: see the head of $0" >&2
        exit 2
        ;;
    esac
done
