r"""Trains a method on a federated dataset and scores every client's model.

    python -m binaries.train --algorithm=fed_rep --dataset=digits \
      --partition=shards:2 --num_clients=30 --cohort_size=10 \
      --num_rounds=100 --baselines=fed_avg --output_dir=runs/digits

The output folder holds `run.sqlite` (the run itself, safe against a crash),
`summary.json`, `per_client.csv`, for data with domains `per_domain.csv`,
`metrics.jsonl`, `tensorboard/`, pictures and, at the end, `metrics.csv`.
Baselines run on the same data with the same seed, each in its own folder below
`baselines/`. `--resume` continues an interrupted run. Presets are in the folder
`flagfiles` next to this program (`--flagfile=flagfiles/fed_rep.txt`, from any
folder).
"""

import os
import sys

from absl import flags

from tff_pfl import errors, plots
from tff_pfl.runs import report
from tff_pfl.runs import run as run_lib

from . import program, run_flags, runtime_flags

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the run.', required=True
)
_RESUME = flags.DEFINE_bool(
  'resume', False, 'Continue the run in --output_dir, if there is one.'
)
_BASELINES = flags.DEFINE_list(
  'baselines', [], 'Methods to run on the same data, for comparison.'
)
for _name in run_flags.KEY_FLAGS:
  flags.declare_key_flag(_name)
flags.adopt_module_key_flags(program)


def main() -> None:
  """Runs the method and its baselines and prints their table."""
  algorithm = run_flags.selected_algorithm()
  run_flags.check_selected(algorithm, *_BASELINES.value)
  directory = _OUTPUT_DIR.value
  folders = {algorithm: directory}
  for baseline in _BASELINES.value:
    folders.setdefault(baseline, os.path.join(directory, 'baselines', baseline))
  with errors.naming({'method': '--baselines'}):
    settings = {name: run_flags.settings_from_flags(name) for name in folders}
  runtime_options = runtime_flags.options()
  source = settings[algorithm].data.data_dir or settings[algorithm].data.name
  print(f'Reading {source} …', file=sys.stderr, flush=True)
  data = settings[algorithm].load_data()
  for one in list(settings.values())[1:]:
    # An unsuitable baseline fails before the first training.
    one.build_process(one.build_model(data), data)
    one.expect_fit(data)
  runs = [
    settings[name].run(
      folder, data=data, resume=_RESUME.value, runtime_options=runtime_options
    )
    for name, folder in folders.items()
  ]
  if len(folders) > 1:
    plots.save(
      run_lib.plot(dict(zip(folders, runs)), ax=plots.new_axes(10, 4.4)),
      os.path.join(directory, report.COMPARISON_PLOT_NAME),
    )
  print(report.tables([run.summary for run in runs]))
  print(f'Report: {os.path.join(directory, report.SUMMARY_NAME)}')


if __name__ == '__main__':
  of_methods = run_flags.FLAGS_OF['algorithm'][1]
  program.run_program(
    main, {**run_flags.FLAGS_OF, 'baselines': ([], of_methods)}
  )
