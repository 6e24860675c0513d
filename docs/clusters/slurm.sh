#!/bin/bash
# Trains on all nodes of a Slurm job; the arguments are those of binaries.train.
#   sbatch --nodes=4 docs/clusters/slurm.sh --dataset=mnist --data_dir=DIR …
# Submit it in the project's folder, which all nodes see, after make venv RAY=1.
#SBATCH --job-name=tff-pfl
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

# Ray starts on each node; the command after -- runs on the first one only.
srun .venv/bin/ray symmetric-run --address "$head:6379" \
  --min-nodes "$SLURM_JOB_NUM_NODES" \
  -- .venv/bin/python -m binaries.train --runtime=ray --ray_address=auto \
  --resume "$@"
