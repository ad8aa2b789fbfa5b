#!/usr/bin/env bash
# Tune public training scripts, unmodified, on the GPUs of this machine, one after the other.
#
#   benchmarks/gpu_tune_jobs.sh SCRIPTS OUT BUDGET JOB... [-- OPTION...]
#
# SCRIPTS holds checkouts of karpathy/nanoGPT (nanoGPT/), pytorch/examples (examples/), and the folder
# examples/fabric/image_classifier of Lightning-AI/pytorch-lightning (fabric/). A JOB is one of
#   nanogpt            GPT-2 (124 M) on one GPU, at nanoGPT's defaults
#   nanogpt_tcp        the same, eager, on all GPUs, its gradients over TCP sockets
#   nanogpt_tcp_tuned  the same with the settings that nanogpt_tcp found (with --apply): nothing should be left
#   resnet_jpeg        ResNet-50 on JPEG files on one GPU, at the script's defaults
#   resnet_starved     the same with two loader workers and batches of 128 (its data: gpu_resnet_data.sh makes them)
#   imagenet_jpeg      the same on all GPUs
#   imagenet           ResNet-50 on random images made by few loader workers
#   imagenet_many_workers  the same with fifteen loader workers a GPU
#   fabric             the image classifier of Lightning Fabric on all GPUs
#   mingpt_tcp         minGPT-ddp on all GPUs, its gradients over TCP sockets
#   fsdp2              the FSDP2 example: it makes ten steps
# OUT receives each tuning's folder and a log. OPTIONs go to `flatout tune`. Data are random, made on the spot.
# FLATOUT names the command (default: flatout), GPUS the number of GPUs (default: all). LONGER=SECONDS then starts each job
# untouched and with the accepted changes for so long (longer_starts.py).
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scripts=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
budget=$3
shift 3
jobs=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    jobs+=("$1")
    shift
done
[ $# -gt 0 ] && shift
options=("$@")
flatout=${FLATOUT:-flatout}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
torchrun="python -m torch.distributed.run --standalone --nproc-per-node $gpus"
sockets="NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo"

data() { # KIND FOLDER: make it once
    [ -e "$2" ] || python "$here/public_script_data.py" "$1" "$2" || exit 2
}

tune() { # JOB FOLDER [VARIABLE=VALUE...] -- COMMAND...
    local job=$1 folder=$2 began=$SECONDS
    shift 2
    local variables=()
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    (cd "$folder" && env "${variables[@]}" $flatout tune --out "$out/$job" --budget "$budget" "${options[@]}" -- "$@") \
        >"$out/$job.log" 2>&1 </dev/null
    echo "$job: code $?, $((SECONDS - began)) s"
    [ -z "${LONGER:-}" ] && return
    (cd "$folder" && env "${variables[@]}" python "$here/longer_starts.py" --tuning "$out/$job" --seconds "$LONGER" \
        --keep "$out/$job.longer.json" $copy --flatout "$flatout" -- "$@") 2>&1 | tail -n 3
}

gpt="--dataset=random --eval_iters=2 --log_interval=10 --max_iters=2000"
eager="$gpt --compile=False --block_size=1024 --batch_size=8 --gradient_accumulation_steps=$gpus"
images="$scripts/jpeg"
imagenet="python main.py --arch resnet50 --epochs 9"
spread="--multiprocessing-distributed --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:29588"

for job in "${jobs[@]}"; do
    copy=--copy
    case $job in
    nanogpt)
        data tokens "$scripts/nanoGPT/data/random"
        tune $job "$scripts/nanoGPT" -- python train.py $gpt
        ;;
    nanogpt_tcp)
        data tokens "$scripts/nanoGPT/data/random"
        tune $job "$scripts/nanoGPT" $sockets -- $torchrun train.py $eager
        ;;
    nanogpt_tcp_tuned)
        data tokens "$scripts/nanoGPT/data/random"
        found=$(sed -n 's/^export //p' "$out/nanogpt_tcp/files/tuned.env") || exit 2
        tune $job "$scripts/nanoGPT" $sockets $found -- $torchrun train.py $eager
        ;;
    resnet_jpeg)
        data images "$images"
        tune $job "$scripts/examples/imagenet" -- $imagenet "$images"
        ;;
    resnet_starved)
        tune $job "$scripts/examples/imagenet" -- $imagenet --batch-size 128 --workers 2 "${images}_long"
        ;;
    imagenet_jpeg)
        data images "$images"
        tune $job "$scripts/examples/imagenet" -- $imagenet $spread "$images"
        ;;
    imagenet)
        tune $job "$scripts/examples/imagenet" -- $imagenet --dummy -b $((64 * gpus)) -j "$gpus" $spread
        ;;
    imagenet_many_workers)
        tune $job "$scripts/examples/imagenet" -- $imagenet --dummy -b $((64 * gpus)) -j $((15 * gpus)) $spread
        ;;
    fabric)
        copy= # it saves nothing, and finds its data from its own folder
        data mnist "$scripts/fabric/../../../Datasets"
        tune $job "$scripts/fabric" -- python -m lightning.fabric.cli --accelerator=gpu --strategy=ddp \
            --devices="$gpus" train_fabric.py
        ;;
    mingpt_tcp)
        tune $job "$scripts/examples/distributed/minGPT-ddp/mingpt" $sockets -- $torchrun main.py \
            data_config.path=data/input.txt data_config.truncate=0.1
        ;;
    fsdp2)
        tune $job "$scripts/examples/distributed/FSDP2" -- $torchrun example.py
        ;;
    *)
        echo "there is no job $job: see the head of $0" >&2
        exit 2
        ;;
    esac
done
