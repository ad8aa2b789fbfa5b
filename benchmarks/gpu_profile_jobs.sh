#!/usr/bin/env bash
# Record public training scripts, unmodified, on the GPUs of this machine, and the overhead of --light on one of them.
#
#   benchmarks/gpu_profile_jobs.sh SCRIPTS OUT
#
# SCRIPTS holds checkouts of karpathy/nanoGPT (nanoGPT/) and pytorch/examples (examples/), and, where trl is installed,
# the folders tiny/ and data/ made as docs/how-to/record-public-scripts.md says. What is not there is passed over.
# OUT receives a recording and a log of each job, and summary.txt: exit codes, and what Flatout said.
# FLATOUT names the command (default: flatout), GPUS the number of GPUs (default: all).
set -u
scripts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
flatout=${FLATOUT:-flatout}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

job() { # NAME FOLDER COMMAND...: record it; the job's own output goes to the log
    local name=$1 folder=$2
    shift 2
    if [ ! -e "$folder" ]; then
        echo "$name: $folder is not there" | tee -a "$out/summary.txt"
        return
    fi
    (cd "$folder" && timeout "${LIMIT:-240}" $flatout profile ${OPTIONS:-} --force --out "$out/$name" -- "$@") \
        >"$out/$name.log" 2>&1 </dev/null
    echo "$name: code $?" | tee -a "$out/summary.txt"
    grep -a '^flatout: ' "$out/$name.log" | tee -a "$out/summary.txt"
}

random_tokens() { # for nanoGPT: data/random with 256 different tokens
    mkdir -p "$scripts/nanoGPT/data/random"
    python - "$scripts/nanoGPT/data/random" <<'END'
import pickle, random, struct, sys
random.seed(0)
for name, length in (("train", 2_000_000), ("val", 100_000)):
    with open(f"{sys.argv[1]}/{name}.bin", "wb") as file:
        file.write(struct.pack(f"<{length}H", *(random.randrange(256) for _ in range(length))))
with open(f"{sys.argv[1]}/meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": 256}, file)
END
}

: >"$out/summary.txt"
torchrun="python -m torch.distributed.run --standalone --nproc-per-node"
if [ -d "$scripts/nanoGPT" ]; then
    random_tokens
    gpt="--dataset=random --compile=False --block_size=512 --batch_size=8 --eval_iters=2 --log_interval=20 --max_iters=120"
    job nanogpt_1 "$scripts/nanoGPT" python train.py $gpt --gradient_accumulation_steps=2
    job nanogpt_compiled "$scripts/nanoGPT" python train.py ${gpt/--compile=False/} --gradient_accumulation_steps=2
    [ "$gpus" -gt 1 ] && job nanogpt_ddp "$scripts/nanoGPT" $torchrun "$gpus" train.py $gpt \
        --gradient_accumulation_steps="$gpus"
fi
job imagenet "$scripts/examples/imagenet" python main.py --dummy --arch resnet18 --batch-size $((64 * gpus)) --epochs 1 \
    --workers $((4 * gpus)) --multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:29588
# Ten steps in all: the window has to come as soon as it can.
[ "$gpus" -gt 1 ] && OPTIONS="--warmup 0 --steps 2" job fsdp2 "$scripts/examples/distributed/FSDP2" $torchrun "$gpus" example.py
if [ -d "$scripts/tiny" ] && sft=$(python -c 'import trl.scripts.sft as script; print(script.__file__)' 2>/dev/null); then
    cp "$sft" "$scripts/sft.py"
    HF_HUB_OFFLINE=1 job trainer "$scripts" $torchrun "$gpus" sft.py --model_name_or_path tiny --dataset_name ./data \
        --per_device_train_batch_size 16 --gradient_accumulation_steps 2 --max_steps 300 --max_length 64 \
        --report_to none --output_dir "$out/trainer_model" --save_strategy no --eos_token "<eos>"
fi

# The same loss to the last bit, with and without (nanoGPT prints four digits; its own settings are deterministic enough).
if [ -d "$scripts/nanoGPT" ]; then
    (cd "$scripts/nanoGPT" && python train.py $gpt --gradient_accumulation_steps=2) >"$out/plain.log" 2>&1
    for log in plain nanogpt_1; do
        grep -a '^iter' "$out/$log.log" | sed 's/, time.*//' >"$out/$log.losses"
    done
    cmp "$out/plain.losses" "$out/nanogpt_1.losses" && echo "losses: the same" | tee -a "$out/summary.txt"
fi
python "$here/profile_overhead.py" --device cuda --pairs 60 | tee -a "$out/summary.txt"
python "$here/profile_overhead.py" --device cpu --pairs 60 | tee -a "$out/summary.txt"
