#!/usr/bin/env bash
# Tune public training scripts, unmodified, on the GPUs of this machine.
#
#   benchmarks/gpu_tune_jobs.sh SCRIPTS OUT JOB BUDGET [OPTION...]
#
# SCRIPTS holds checkouts of karpathy/nanoGPT (nanoGPT/) and pytorch/examples (examples/). JOB is one of
#   nanogpt_tcp   GPT-2 (124 M), eager, its gradients over TCP sockets
#   nanogpt_tcp_tuned  the same with the settings that nanogpt_tcp found (with --apply): nothing should be left
#   imagenet      ResNet-50 on random images made by few loader workers
#   imagenet_many_workers  the same with fifteen loader workers a GPU
# OUT receives the tuning's folder and a log. More options go to `flatout tune`.
# FLATOUT names the command (default: flatout), GPUS the number of GPUs (default: all).
set -u
scripts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
job=$3 budget=$4
shift 4
flatout=${FLATOUT:-flatout}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}

tune() { # FOLDER COMMAND...
    local folder=$1
    shift
    (cd "$folder" && $flatout tune --out "$out/$job" --budget "$budget" "${options[@]}" -- "$@") \
        >"$out/$job.log" 2>&1 </dev/null
    echo "$job: code $?"
}

options=("$@")
case $job in
nanogpt_tcp | nanogpt_tcp_tuned)
    python - "$scripts/nanoGPT/data/random" <<'END'
import os, pickle, random, struct, sys
os.makedirs(sys.argv[1], exist_ok=True)
random.seed(0)
for name, length in (("train", 2_000_000), ("val", 100_000)):
    with open(f"{sys.argv[1]}/{name}.bin", "wb") as file:
        file.write(struct.pack(f"<{length}H", *(random.randrange(256) for _ in range(length))))
with open(f"{sys.argv[1]}/meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": 50257}, file)
END
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo
    if [ "$job" = nanogpt_tcp_tuned ]; then
        . "$out/nanogpt_tcp/files/tuned.env" || exit 2
    fi
    tune "$scripts/nanoGPT" python -m torch.distributed.run --standalone --nproc-per-node "$gpus" train.py \
        --dataset=random --compile=False --block_size=1024 --batch_size=8 --gradient_accumulation_steps="$gpus" \
        --eval_iters=2 --log_interval=50 --max_iters=2000
    ;;
imagenet | imagenet_many_workers)
    workers=$gpus
    [ "$job" = imagenet ] || workers=$((15 * gpus))
    tune "$scripts/examples/imagenet" python main.py --dummy --arch resnet50 -b $((64 * gpus)) -j "$workers" --epochs 1 \
        --multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:29588
    ;;
*)
    echo "there is no job $job: nanogpt_tcp, nanogpt_tcp_tuned, imagenet or imagenet_many_workers" >&2
    exit 2
    ;;
esac
