"""The flag --small: the settings of a preset with tiny sizes.

Two rounds of two clients, one epoch and one seed, or the numbers of an
experiment's --fast; the same model, methods, data set and partition, with few
units, clients and examples. The data are random numbers in files of the data
set's form, which are read as the published ones (--data_dir has others read).
What is shown is that the settings work, not how well.
"""

import dataclasses
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import pandas as pd
import tensorflow as tf
from absl import flags

from tff_pfl import datasets, errors
from tff_pfl.comparisons import plan
from tff_pfl.datasets.sources import digits5, fairface, image_sets
from tff_pfl.models import zoo
from tff_pfl.runs import settings as settings_lib
from tff_pfl.system import folders

SMALL = flags.DEFINE_bool(
  'small',
  False,
  'Try the settings with tiny sizes (of an experiment, those of --fast) and '
  'generated data. Results go to --output_dir with _small at its end.',
)

_NUM_CLIENTS, _NUM_NEW_CLIENTS = 10, 2
# Texts or, of images of few classes, examples of each.
_NUM_EXAMPLES = 30
# Arguments of models, data sets and partitions that are sizes.
_SIZES = {
  'base_filters': 4,
  'embedding_size': 8,
  'examples_per_client': 20,
  'filters': 4,
  'image_size': 32,
  'images_per_digit': 4,
  'least_size': 5.0,
  'log_mean': 1.0,
  'min_texts': 1,
  'stride': 40,
  'units': 8,
  'widths': 8,
}


def output_dir(path: str) -> str:
  """The folder for small results in place of `path`."""
  path = folders.output_path(path, 'output_dir')
  return f'{path.rstrip(os.sep)}_small'


def comparison(settings: plan.Comparison, directory: str) -> plan.Comparison:
  """Returns a comparison with tiny sizes, without choices of a grid.

  Args:
    settings: The comparison.
    directory: Folder of its results, which gets the generated data.
  """
  grid = {
    owner: {name: _shortened(name, values) for name, values in axes.items()}
    for owner, axes in settings.grid.items()
  }
  trials = settings.num_search_trials
  return dataclasses.replace(
    settings,
    base=config(settings.base, directory),
    methods=[_with_few_steps(method) for method in settings.methods],
    seeds=settings.seeds[:1],
    grid=grid,
    num_search_trials=trials and min(trials, 2),
    num_new_clients=min(settings.num_new_clients, _NUM_NEW_CLIENTS),
    tuning_rounds=1 if any(grid.values()) else None,
    num_folds=settings.num_folds and 2,
  )


def config(
  settings: settings_lib.Settings, directory: str
) -> settings_lib.Settings:
  """Returns the settings of a run with tiny sizes.

  Args:
    settings: The settings.
    directory: Folder of the results, which gets the generated data.

  Raises:
    ValueError: If data of such a form cannot be generated.
  """
  data, model, start = settings.data, settings.model, settings.start
  loader = datasets.DATASETS[data.name].loader
  num_clients = min(data.num_clients or _NUM_CLIENTS, _NUM_CLIENTS)
  attacked = settings.process.attacked_fraction
  return dataclasses.replace(
    settings,
    method=_with_few_steps(settings.method),
    data_dir=data.data_dir or _generated([data.name], directory),
    dataset_arguments=_tiny(loader, data.arguments),
    partition=data.partition and _tiny_partition(data.partition),
    num_clients=num_clients,
    attacked_fraction=attacked and max(attacked, 1 / num_clients),
    model_arguments=_tiny(zoo.MODELS[model.name], model.arguments),
    personalization=_with_few_steps(settings.process.personalization),
    initial_run=None,
    initial_run_part='all',
    initial_weights=None,
    num_warmup_rounds=min(start.num_warmup_rounds, 1),
    num_warmup_epochs=start.num_warmup_epochs and 1,
    num_rounds=2,
    cohort_size=2,
    participation=None,
    rounds_per_evaluation=2,
    num_final_evaluations=1,
  )


def experiment(
  full: Any, fast: Any, data_dir: Optional[str], directory: str
) -> tuple[dict[str, Any], Optional[str]]:
  """Returns tiny sizes of an experiment on data sets, and the data's folder.

  Integers and lists of numbers are those of `fast`; all else is kept, of
  several conditions the first, of layers the first and the last.

  Args:
    full: The sizes.
    fast: Sizes of minutes, of the same fields.
    data_dir: Folder of the data sets' files; None to have them generated.
    directory: Folder of the results, which gets the generated data.
  """
  sizes = {
    name: _kept(name, value, getattr(fast, name))
    for name, value in vars(full).items()
  }
  if 'model' in sizes:
    model = zoo.MODELS[full.model]
    sizes['model_arguments'] = _tiny(model, full.model_arguments)
  if 'dataset_arguments' in sizes:
    loader = datasets.DATASETS[full.dataset].loader
    sizes['dataset_arguments'] = _tiny(loader, full.dataset_arguments)
  used = {full.dataset, getattr(full, 'new_dataset', None)} - {None}
  return sizes, data_dir or _generated(sorted(used), directory)


def _kept(name: str, value: Any, fast: Any) -> Any:
  """A value of an experiment's sizes, or a faster one."""
  if name == 'initial_weights':
    return None
  if name.endswith('partition'):
    return _tiny_partition(value)
  if name in ('partitions', 'thresholds'):
    return dict(itertools.islice(value.items(), len(fast)))
  if name == 'layers':
    first, *others = value
    return [first, *others[-1:]]
  is_size = isinstance(value, int)
  if isinstance(value, Sequence) and 'classes' not in name:
    is_size = not any(isinstance(item, str) for item in value)
  return fast if is_size else value


def _tiny_partition(spec: str) -> str:
  """A partition of the data with tiny values of its sizes."""
  partition = datasets.make_partitioner(spec)
  sizes = _tiny(type(partition), vars(partition))
  return dataclasses.replace(partition, **sizes).spec


def _tiny(function: Callable[..., Any], given: Mapping[str, Any]) -> dict:
  """The arguments of a function, with tiny values of those that are sizes."""
  arguments = dict(given)
  for name, parameter in inspect.signature(function).parameters.items():
    value = arguments.get(name, parameter.default)
    if name in _SIZES and value is not None:
      size = _SIZES[name]
      is_list = isinstance(value, Sequence)
      arguments[name] = [size] * len(value) if is_list else size
  return arguments


def _shortened(name: str, values: Any) -> Any:
  """The first value of a grid, of epochs and steps 1; ranges as they are."""
  if isinstance(values, plan.Range):
    return values
  is_number_of_steps = name.endswith(('epochs', 'steps')) and values[0]
  return (1,) if is_number_of_steps else values[:1]


def _with_few_steps(settings: Any) -> Any:
  """A dataclass whose numbers of epochs and steps are 1, where they are set."""
  values = {
    field.name: _shortened(field.name, (getattr(settings, field.name),))[0]
    for field in dataclasses.fields(settings)
  }
  return dataclasses.replace(settings, **values)


def _generated(names: Sequence[str], directory: str) -> Optional[str]:
  """Writes data sets' files; returns their folder, None if there are none."""
  names = [name for name in names if datasets.DATASETS[name].takes_data_dir]
  if not names:
    return None
  folder = os.path.join(directory, 'data')
  for name in names:
    errors.expect_one_of('dataset', name, _WRITERS)
    os.makedirs(folder, exist_ok=True)
    _WRITERS[name](folder)
  return folder


def _write_images(folder: str, *, name: str) -> None:
  """Writes a file of `image_sets`; clients are for FEMNIST alone."""
  form = image_sets.IMAGE_SETS[name]
  rng = np.random.default_rng(0)
  arrays = {}
  for suffix, most in (('', _NUM_EXAMPLES), ('_test', _NUM_EXAMPLES // 3)):
    # As many of each class, about, for 10 classes and for 100.
    count = form.num_classes * max(2, most * 20 // (form.num_classes + 10))
    arrays[f'y{suffix}'] = np.arange(count) % form.num_classes
    shape = (count, *(form.shape or (28, 28, 3)))
    arrays[f'x{suffix}'] = rng.integers(0, 256, shape, np.uint8)
    if name == 'femnist':
      num_clients = _NUM_CLIENTS + _NUM_NEW_CLIENTS
      arrays[f'client{suffix}'] = np.arange(count) % num_clients
  np.savez(os.path.join(folder, f'{name}.npz'), **arrays)


def _write_digits5(folder: str) -> None:
  for name in digits5.DOMAINS:
    _write_images(folder, name=name)


def _write_fairface(folder: str) -> None:
  rng = np.random.default_rng(0)
  races, ages, genders = (
    fairface.RACES,
    fairface.LABELS['age'],
    fairface.LABELS['gender'],
  )
  for split, count in (('train', 4), ('val', 1)):
    os.makedirs(os.path.join(folder, split))
    rows = [
      (f'{split}/{i}_{j}_{k}.jpg', age, genders[k % 2], race)
      for i, race in enumerate(races)
      for j, age in enumerate(ages)
      for k in range(count)
    ]
    for file, *_ in rows:
      image = tf.io.encode_jpeg(rng.integers(0, 256, (32, 32, 3), np.uint8))
      tf.io.write_file(os.path.join(folder, file), image)
    pd.DataFrame(rows, columns=['file', 'age', 'gender', 'race']).to_csv(
      os.path.join(folder, f'fairface_label_{split}.csv'), index=False
    )


def _write_images_with_records(folder: str) -> None:
  """Writes an .npz file of images, records, two classes and five domains."""
  rng = np.random.default_rng(0)
  count = (_NUM_CLIENTS + _NUM_NEW_CLIENTS) * _NUM_EXAMPLES
  np.savez(
    os.path.join(folder, 'examples.npz'),
    x=rng.integers(0, 256, (count, 32, 32, 1), np.uint8),
    record=rng.standard_normal((count, 22)),
    y=np.arange(count) // 5 % 2,
    client=np.arange(count) // _NUM_EXAMPLES,
    domain=np.arange(count) % 5,
  )


def _write_shakespeare(folder: str) -> None:
  rng = np.random.default_rng(0)
  with open(os.path.join(folder, 'shakespeare.txt'), 'w') as file:
    for i in range(_NUM_CLIENTS + _NUM_NEW_CLIENTS):
      file.write(f'ROLE {i}:\n{_text(rng, 200)}\n\n')


def _write_sentiment(folder: str) -> None:
  rng = np.random.default_rng(0)
  texts = [
    (f'user_{i}', _text(rng, 8), label % 2)
    for i in range(_NUM_CLIENTS + _NUM_NEW_CLIENTS)
    for label in range(_NUM_EXAMPLES)
  ]
  pd.DataFrame(texts, columns=['user', 'text', 'label']).to_csv(
    os.path.join(folder, 'sentiment.csv'), index=False
  )


def _text(rng: np.random.Generator, num_words: int) -> str:
  letters = rng.integers(ord('a'), ord('z') + 1, (num_words, 6), np.uint8)
  return ' '.join(word.tobytes().decode() for word in letters)


_WRITERS: Mapping[str, Callable[[str], None]] = {
  **{
    name: functools.partial(_write_images, name=name)
    for name in image_sets.IMAGE_SETS
    if name in datasets.DATASETS
  },
  'digits5': _write_digits5,
  'fairface': _write_fairface,
  'npz': _write_images_with_records,
  'sentiment': _write_sentiment,
  'shakespeare': _write_shakespeare,
}
