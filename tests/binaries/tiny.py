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
  '--algorithm=fed_rep',
)
# The same of a table, or files, with clients of its own.
NATURAL = (
  '--partition=natural',
  '--num_clients=2',
  '--cohort_size=2',
  '--num_rounds=1',
  '--num_final_evaluations=1',
  '--model=linear',
  '--algorithm=fed_avg',
  '--output_dir=run',
)
