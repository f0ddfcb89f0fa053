#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8
#SBATCH --requeue --open-mode=append

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TMPDIR=$SLURM_SUBMIT_DIR  # a folder that all nodes see: rank 0 leaves its request there

trimtab run -- srun torchrun --nnodes 4 --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29500" train.py
code=$?
if [ $code -eq 75 ]; then  # launching again on these nodes did not help
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
