"""A training run of a second, for the programs' tests."""

FLAGS = (
  '--dataset=digits',
  '--partition=shards:2',
  '--num_clients=6',
  '--cohort_size=2',
  '--num_rounds=2',
  '--rounds_per_evaluation=2',
  '--num_final_evaluations=1',
  '--model=mlp',
  '--model_widths=16',
)
