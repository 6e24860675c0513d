"""A run, in progress or finished: its results as data frames and its models."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import keras
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tff_pfl import datasets, errors, fields, plots
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import padding, personalized_process
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.datasets import columns, files, frames
from tff_pfl.models import keras_bridge, prediction, split_model
from tff_pfl.runs import (
  client_population,
  evaluation,
  model_files,
  report,
  run_store,
)
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runtime import base as runtime_base

# How runs on tables encode rows as examples.
ENCODING_NAME = 'encoding.json'
# The folder of a copy of the run that ends with the best evaluation.
BEST_NAME = 'best'

_Runtime = Optional[runtime_base.Runtime]


def _several(runs):
  """A list of the runs in a list or a dict."""
  runs = runs.values() if isinstance(runs, Mapping) else runs
  several = list(runs) if isinstance(runs, Iterable) else []
  errors.expect(
    several and all(isinstance(run, Run) for run in several),
    'runs',
    'a list of runs, or a dict of them by name, with at least one',
    runs,
  )
  return several


def summarize(runs: Union[Mapping[str, Run], Iterable[Run]]) -> pd.DataFrame:
  """The main figures of runs, a row for each.

  A dict's names are in the first column, `run`.
  """
  table = report.summary_frame([run.summary for run in _several(runs)])
  if isinstance(runs, Mapping):
    table.insert(0, 'run', list(runs))
  return table


def tidy(runs: Union[Mapping[str, Run], Iterable[Run]]) -> pd.DataFrame:
  """The newest scores of all clients of runs, one number per row.

  Returns:
    Columns `method`, `seed`, `round`, `client`, `domain` (None for all of a
    client's examples), `when` ('before' or 'after' personalization), `metric`,
    `value`, and the numbers of examples and rounds of `Run.scores`. A dict's
    names are in the first column, `run`.
  """
  tables = []
  for run in _several(runs):
    with run._store() as store:
      config, evaluations = store.config, store.evaluations()
    table = summary_lib.tidy(run.scores)
    table.insert(0, 'method', config['algorithm'])
    table.insert(1, 'seed', config['seed'])
    table.insert(2, 'round', evaluations[-1]['round'] if evaluations else 0)
    tables.append(table)
  if isinstance(runs, Mapping):
    for name, table in zip(runs, tables):
      table.insert(0, 'run', name)
  return pd.concat(tables, ignore_index=True)


@fields.checked_call
def plot(
  runs: Union[Mapping[str, Run], Iterable[Run]],
  metric: Optional[str] = None,
  ax: Optional[Axes] = None,
) -> Axes:
  """Draws a metric of runs by round, a mean over clients.

  Args:
    runs: Runs by their names in the legend, or a list of runs. A list uses the
      names of methods, or of folders if a method has several runs.
    metric: Name of a metric of `Run.curves`. None uses the primary metric.
    ax: Axes to draw on. None makes a new pyplot figure.
  """
  several = _several(runs)
  records = [run.record for run in several]
  names = [one['algorithm'] for one in records]
  if isinstance(runs, Mapping):
    names = list(runs)
  elif len(set(names)) < len(names):
    names = [run.directory for run in several]
  frames = {name: run.curves for name, run in zip(names, several)}
  primary = several[0].primary_metric
  if metric is not None:
    errors.expect_one_of('metric', metric, frames[names[0]]['metric'].unique())
    if metric != primary.name:
      primary = split_model.PrimaryMetric(metric, higher_is_better=True)
  title = report.run_title(records[0]) if len(several) == 1 else ''
  ax = ax or plots.pyplot_axes(10, 4.4)
  return report.plot_curves(frames, primary, title=title, ax=ax)


class Run:
  """A run: its results, as stored at the moment, and its models.

  `pfl.run` returns a run, and `open_run` opens the run in a folder. Methods
  that compute take a `runtime`. None uses the run's own runtime on the CPU.

  Attributes:
    directory: The run's folder.
  """

  def __init__(
    self,
    directory: str,
    *,
    process: Optional[personalized_process.PersonalizedProcess] = None,
    data: Optional[datasets.FederatedDataset] = None,
    settings: Any = None,
    no_settings: str = '',
    continue_with: Optional[Callable[..., Run]] = None,
  ):
    """Opens a run's folder. Users call `open_run` instead.

    Args:
      process: Process of the run. None lets `settings` build it.
      data: Data of the run. None lets `settings` load them.
      settings: The `Settings` that build both when they are first needed.
      no_settings: One sentence on why there are no settings.
      continue_with: Function `(num_rounds, **options) -> Run` that trains for
        more rounds.
    """
    self.directory = directory
    self._settings = settings
    self._no_settings = no_settings
    self._continue_with = continue_with
    # The run that `best` belongs to, which has the data and the model.
    self._start_of = self
    # Cached by personalization, because building a process takes seconds.
    self._processes = {None: process} if process is not None else {}
    if data is not None:
      self.data = data

  # Results.

  @property
  def record(self) -> dict[str, Any]:
    """The stored configuration of the run, as JSON types."""
    with self._store() as store:
      return store.config

  @property
  def last_round(self) -> int:
    """The number of finished rounds."""
    with self._store() as store:
      return store.last_round

  @property
  def summary(self) -> dict[str, Any]:
    """The figures of the report, see `report.summarize`.

    Raises:
      RunError: If the run was interrupted, or is in progress.
    """
    path = os.path.join(self.directory, report.SUMMARY_NAME)
    summary = summary_lib.read_json(path) if os.path.exists(path) else {}
    with self._store() as store:
      last_round = store.last_round
    if summary.get('num_rounds') != last_round:
      raise errors.RunError(
        f'The run in {self.directory} has no {report.SUMMARY_NAME} of its '
        f'{last_round} rounds, which is written after the last requested '
        'round: continue it.'
      )
    return summary

  @property
  def scores(self) -> pd.DataFrame:
    """The newest evaluation, a row for each client with test examples.

    Columns are `client`, `num_train_examples`, `num_test_examples`,
    `num_rounds` (in which it took part), and each metric on its test examples
    before and after personalization, such as `before/accuracy` and
    `after/accuracy`. Data with domains add `domains/…`.
    """
    with self._store() as store:
      return summary_lib.frame(store.per_client())

  @property
  def history(self) -> pd.DataFrame:
    """A row for each round: `round`, the metrics of training, `seconds`.

    Metrics of evaluations, such as `evaluation/personal/accuracy`, are NaN for
    rounds without an evaluation.
    """
    with self._store() as store:
      return summary_lib.frame(store.history())

  @property
  def primary_metric(self) -> split_model.PrimaryMetric:
    """The metric that compares the models."""
    with self._store() as store:
      evaluations = store.evaluations()
    if not evaluations:
      raise errors.RunError(
        f'The run in {self.directory} has not been evaluated yet.'
      )
    return report.primary_metric(evaluations)

  @property
  def curves(self) -> pd.DataFrame:
    """The scores by round, in the tidy form of `plots.curves`.

    Columns are `round`, `model` ('personal' or 'global'), `metric` and `value`,
    a mean over clients. Runs without personalization have only the global
    model.
    """
    with self._store() as store:
      return report.curves(store.evaluations())

  def plot(
    self, metric: Optional[str] = None, ax: Optional[Axes] = None
  ) -> Axes:
    """Draws a metric by round, see the function `plot`."""
    return plot([self], metric, ax)

  def table(self) -> str:
    """The table that programs print, with the scores by domain if any."""
    return report.tables([self.summary])

  def _repr_html_(self) -> str:
    with self._store() as store:
      title = f'{report.run_title(store.config)}, {store.last_round} rounds'
    try:
      figures = summarize([self]).to_html(index=False, na_rep='–')
    except errors.RunError:
      figures = ''
    title, directory = map(html.escape, (title, self.directory))
    return f'<b>{title}</b>{figures}<code>{directory}</code>'

  def __repr__(self) -> str:
    return f'Run({self.directory!r})'

  @property
  def best(self) -> Run:
    """The run as it was after its best evaluation.

    The personal models' primary metric on test examples selects the best
    evaluation, so its scores are optimistic.

    Raises:
      RunError: If no best models were kept.
    """
    directory = os.path.join(self.directory, BEST_NAME)
    if not run_store.has_run(directory):
      raise errors.RunError(
        f'The run in {self.directory} has kept no best models: give '
        '`keep_best=True` (--keep_best) when you make it. An evaluation that '
        'is not finite is never the best.'
      )
    best = Run(
      directory, settings=self._settings, no_settings=self._no_settings
    )
    # Both runs share what they build.
    best._processes = self._processes
    best._start_of = self
    return best

  def continue_(self, num_rounds: int, **options: Any) -> Run:
    """Trains for more rounds.

    Args:
      num_rounds: Total number of rounds, including finished ones.
      **options: Other arguments of `pfl.run`, such as `callbacks`.
    """
    if self._start_of is not self:
      raise errors.RunError(
        f'{self.directory} has the best models of another run, which is the '
        'one to continue.'
      )
    if self._continue_with is None:
      self.settings  # noqa: B018  Raises an error that says what is missing.
    return self._continue_with(num_rounds=num_rounds, **options)

  # Settings, data and method.

  @property
  def settings(self) -> Any:
    """The `Settings` that made the run.

    Raises:
      RunError: If `pfl.run` made it from a process and data.
    """
    if self._settings is None:
      reason = self._no_settings or 'A run that was made in Python has none.'
      raise errors.RunError(
        f'{reason} If you need the model or the data of the run in '
        f'{self.directory}, give `open_run` its process and data.'
      )
    return self._settings

  @functools.cached_property
  def data(self) -> datasets.FederatedDataset:
    """The clients.

    Raises:
      RunError: If they cannot be loaded again or have changed.
    """
    if self._start_of is not self:
      return self._start_of.data
    data = self.settings.load_data()
    with self._store() as store:
      client_population.check_unchanged(data, store)
    return data

  @property
  def process(self) -> personalized_process.PersonalizedProcess:
    """The method."""
    return self.build_process()

  @property
  def model(self) -> split_model.SplitModel:
    """The clients' model, which the method makes from the run's model."""
    return self.process.model

  @fields.checked_call
  def build_process(
    self, personalization: Optional[personalization_lib.Personalization] = None
  ) -> personalized_process.PersonalizedProcess:
    """The method, with another personalization if given."""
    if personalization not in self._processes:
      self._processes[personalization] = (
        self.settings.build_process(self._own_model, self.data)
        if personalization is None
        else self.process.with_personalization(personalization)
      )
    return self._processes[personalization]

  @functools.cached_property
  def _own_model(self):
    if self._start_of is not self:
      return self._start_of._own_model
    return self.settings.initial_model(self.data, self.directory)

  # Models.

  @fields.checked_call
  def server_state(
    self,
    process: Optional[personalized_process.PersonalizedProcess] = None,
    runtime: _Runtime = None,
  ) -> personalized_process.ServerState:
    """The newest committed server state, for a process of this run."""
    with self._store() as store:
      return client_population.server_state(
        process or self.process, runtime or self.cpu, store
      )

  def global_weights(self, runtime: _Runtime = None) -> split_model.Weights:
    """The server's weights."""
    return self.server_state(runtime=runtime).global_weights

  @fields.checked_call
  def new_client_weights(self, runtime: _Runtime = None) -> split_model.Weights:
    """The model weights for a client without data."""
    runtime = runtime or self.cpu
    return runtime.run(
      self.process.model_without_data, self.server_state(runtime=runtime)
    )

  @fields.checked_call
  def personal_weights(
    self, client_id: str, runtime: _Runtime = None
  ) -> split_model.Weights:
    """All weights of a client's personal model, by name.

    Raises:
      RunError: If the stored states are damaged or belong to another process.
    """
    client_id = self.data.find_client(client_id)
    with self.open_personal_weights(runtime) as weights_of:
      return weights_of(client_id)

  @contextlib.contextmanager
  def open_personal_weights(
    self, runtime: _Runtime = None
  ) -> Iterator[Callable[[str], split_model.Weights]]:
    """Yields `personal_weights` of one argument, with the run open.

    It reads the server's state once for all clients.
    """
    process, data = self.process, self.data
    runtime = runtime or self.cpu
    train = padding.ClientExamples(data.train)
    positions = {name: i for i, name in enumerate(data.client_ids)}
    with self._store() as store:
      server_state = client_population.server_state(process, runtime, store)
      states_of = client_population.client_states(process, runtime, store)

      def weights_of(client_id):
        client_id = data.find_client(client_id)
        (state,) = states_of([positions[client_id]])
        examples = evaluation.training_examples(
          process, runtime, [state], train, [client_id]
        )
        return runtime.run(
          process.personalize, server_state, state, *examples
        ).weights

      yield weights_of

  def personal_model(
    self, client_id: str, runtime: _Runtime = None
  ) -> keras.Model:
    """A client's personal model as a new Keras model.

    It has the outputs of `SplitModel.forward`, which are logits if the loss
    takes logits. Some methods have models that are more than a Keras model (see
    `keras_bridge.keras_model`). `predict` works for all methods.

    Raises:
      ValueError: If the model is more than a Keras model.
    """
    weights = self.personal_weights(client_id, runtime)
    return keras_bridge.keras_model(self.model, weights)

  @fields.checked_call
  def export(
    self,
    client: Optional[str],
    path: str,
    *,
    personalization: Optional[personalization_lib.Personalization] = None,
    quantization: str = 'none',
    runtime: _Runtime = None,
  ) -> str:
    """Writes a client's personal model for other systems.

    A run on a table also writes `encoding.json` and `classes.json` next to it.
    Existing files are replaced.

    Args:
      client: The client's id. None exports the model of a client without data.
      path: A `.keras` or `.tflite` file, or a folder, without an ending, for a
        SavedModel, whose version is the number of rounds.
      personalization: How the file fits a new client's model (not for
        `.keras`). None uses the run's personalization, or fits all weights if
        that fits nothing.
      quantization: Quantization of the weights in a `.tflite` file: 'none',
        'int8' or 'float16'. A quantized file can only predict.

    Returns:
      The path of the file, or of this version's folder.
    """
    return model_files.export(
      self, client, path, personalization, quantization, runtime or self.cpu
    )

  @fields.checked_call
  def predict(
    self,
    client: Union[str, pd.Series, Mapping[str, Any]],
    x: Any,
    domain: Optional[np.ndarray] = None,
    runtime: _Runtime = None,
  ) -> Union[np.ndarray, pd.DataFrame]:
    """Outputs of a client's personal model.

    Args:
      client: The client's id, or all weights of a model, such as a result of
        `evaluation.personalize`. For a frame, also a column of it with ids, so
        that each row uses its own client's model.
      x: Inputs `[n, ...]`, scaled like the run's data, or a dict of several
        inputs. For a run on a frame (`FederatedDataset.from_frame`), a frame
        with the columns of its inputs, and its domain column if it has one.
      domain: Integers `[n]`, for arrays of data with domains.

    Returns:
      For classifiers, the classes' probabilities `[n, ..., num_classes]`;
      otherwise the raw outputs. For a frame, a frame with the same index, see
      `frames.FrameEncoding.predictions`.
    """
    if isinstance(client, pd.Series):
      errors.expect(
        isinstance(x, pd.DataFrame) and client.index.equals(x.index),
        'client',
        'a column of the frame `x`, with its index',
        client.index,
      )
      owners = columns.owners(client).astype(str)
      with self.open_personal_weights(runtime) as weights_of:
        return self._predict_rows(x, owners, weights_of)
    is_weights = isinstance(client, Mapping)
    weights = client if is_weights else self.personal_weights(client, runtime)
    if isinstance(x, pd.DataFrame) and os.path.exists(self.encoding_path):
      return self._predict_rows(x, np.zeros(len(x)), lambda _: weights)
    return prediction.predict(self.model, weights, x, domain, self._forward)

  def _predict_rows(self, frame, owners, weights_of):
    outputs = prediction.predict_rows(
      self.model, self.encoding, frame, owners, weights_of, self._forward
    )
    return self.encoding.predictions(outputs, frame.index)

  @functools.cached_property
  def _forward(self):
    return prediction.compiled(self.model)

  # Rows of frames.

  @property
  def encoding_path(self) -> str:
    """The file of `encoding`, which only runs on frames and tables have."""
    return os.path.join(self._start_of.directory, ENCODING_NAME)

  @functools.cached_property
  def encoding(self) -> frames.FrameEncoding:
    """The encoding of a frame's rows as examples, as in training.

    Raises:
      RunError: If the run's data are not a frame or table.
      ValueError: If the encoding's file is damaged.
    """
    path = self.encoding_path
    if not os.path.exists(path):
      raise errors.RunError(
        'Expected a run on a frame or table for rows of one, found a run on'
        f' other data in {self.directory}. Give examples as arrays.'
      )
    with files.reading(path, 'the encoding of a table'):
      return frames.FrameEncoding(**json.loads(files.read_bytes(path)))

  @functools.cached_property
  def cpu(self) -> runtime_base.Runtime:
    """The runtime of calls without a `runtime`."""
    return runtime_lib.create_runtime('in_process', devices='cpu')

  def _store(self):
    return run_store.RunStore.open_for_reading(self.directory)
