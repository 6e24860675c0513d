"""Trains: rounds, evaluations, a durable run, a report.

    for each round:
      sample a cohort from (seed, round), of which all or some report
      process.next(server state, the cohort's client states, its training data)
      every `rounds_per_evaluation` rounds, and at the end: score all clients
      commit everything that changed in one transaction
      tell the callbacks
    write the report

What is committed survives `kill -9`. A resumed run has the same
cohorts and seeds, so it ends exactly as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import numbers
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tqdm
from absl import logging

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import personalized_process
from tff_pfl.models import description
from tff_pfl.runs import callbacks as callbacks_lib
from tff_pfl.runs import (
  client_population,
  client_sampling,
  metrics_writers,
  personalized_evaluation,
  privacy,
  report,
  run_store,
  stored_rounds,
  value_codec,
)
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.system import cores, folders, machine

# What is stored of the process and the data beside the settings.
RECORDED = (
  'process',
  client_population.FINGERPRINT,
  'privacy',
  'initial_weights_sha256',
)


@errors.typed
def run(
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  output_dir: str,
  *,
  num_rounds: int,
  cohort_size: int,
  dropout_rate: float = 0.0,
  rounds_per_evaluation: int = 10,
  num_final_evaluations: int = 10,
  runtime: str = runtime_lib.DEFAULT,
  runtime_options: Optional[Mapping[str, Any]] = None,
  resume: bool = False,
  settings: Optional[Mapping[str, Any]] = None,
  accounting: Optional[privacy.Accounting] = None,
  keep_best: bool = False,
  callbacks: Sequence[callbacks_lib.Callback] = (),
  show_progress: bool = True,
  pictures: bool = True,
) -> run_lib.Run:
  """Trains and evaluates a method on a dataset.

  Args:
    process: The method; its seed is also that of the sampling, so it must not
      be negative.
    data: The clients; `FederatedDataset.joining` says which of them join later.
    output_dir: Folder of the run: its store, metrics and report.
    num_rounds: Rounds of training; a resumed run may have more than before.
    cohort_size: Number of clients in a round, 1 to all.
    dropout_rate: Probability with which a client of a round fails to report and
      is left out of it.
    rounds_per_evaluation: Rounds between evaluations of all clients that have
      joined.
    num_final_evaluations: Number of last rounds that are all evaluated, at
      least 1; with 10, "last 10 rounds" is a mean over ten.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The keyword arguments of that runtime's class, which are
      not stored with the run.
    resume: True to continue the run in `output_dir`, if there is one; False
      makes an existing run an error.
    settings: Further settings that define the run (hyperparameters, model,
      partition), as JSON types, stored with it. A run is resumed only with the
      same settings, by a process with the same description, on the same data.
      Without `'model'` among them, a description of the model is stored under
      that name: its layers, loss, metrics and shapes, a checksum of its initial
      weights and what it gives for some inputs. To resume the run, build the
      model by the same code, with its initial weights seeded.
    accounting: Privacy accounting of a process whose aggregator adds this
      noise, with the cohorts of this run: epsilon is printed, stored with each
      round's metrics, and in the summary.
    keep_best: True to keep, beside the newest, all states after the best
      evaluation (see `Run.best`), each time at the cost of a copy.
    callbacks: Listeners, called after each round and evaluation.
    pictures: True for a report with pictures.

  Returns:
    The run.

  Raises:
    RunError: If the run cannot start or go on. What was committed is safe.
  """
  output_dir = folders.results_folder(output_dir, folders.RUN)
  sizes = {
    'num_rounds': num_rounds,
    'rounds_per_evaluation': rounds_per_evaluation,
    'num_final_evaluations': num_final_evaluations,
  }
  for name, value in sizes.items():
    errors.expect_int(name, value, 1)
  for one in callbacks:
    errors.expect_type(
      one, callbacks_lib.Callback, 'callbacks', 'objects of type Callback'
    )
  sampler = client_sampling.CohortSampler(
    data.num_clients,
    cohort_size,
    process.seed,
    dropout_rate,
    client_sampling.join_rounds_of(data),
  )
  _expect_fit(process, data, cohort_size)
  num_late = sum(first > num_rounds for first in data.join_round.values())
  if num_late:
    logging.warning('%d clients join after the last round.', num_late)
  sizes.update(cohort_size=cohort_size, dropout_rate=dropout_rate)
  config = _settings_of_run(process, data, sizes, runtime, settings or {})
  epsilons = None
  if accounting is not None:
    _expect_accounting_of(process, sampler, accounting)
  with contextlib.ExitStack() as stack:
    # Before the store, so that an unknown runtime, or one whose workers cannot
    # be reached, leaves nothing behind.
    runtime = stack.enter_context(
      runtime_lib.create_runtime(
        runtime,
        **_options_of_runtime(
          runtime, runtime_options or {}, process.model, data, sampler
        ),
      )
    )
    if accounting is not None:
      spent = accounting.for_state(runtime.run(process.initialize))
      config['privacy'] = spent.description()
      epsilons = spent.epsilons(num_rounds)
      print(privacy.announcement(spent, epsilons), file=sys.stderr)
    store = stack.enter_context(
      run_store.RunStore.open(output_dir, config, resume=resume)
    )
    _expect_same_metrics(process.model, store)
    if data.encoding is not None:
      # The encoding of a table's rows as examples.
      summary_lib.write_json(
        os.path.join(store.directory, run_lib.ENCODING_NAME),
        dataclasses.asdict(data.encoding),
      )
    # A copy that is there must not fall behind.
    kept = os.path.join(output_dir, run_lib.BEST_NAME)
    keep_best = keep_best or run_store.has_run(kept)
    best = _Best(store) if keep_best else None
    _train(
      runtime,
      process,
      data,
      store,
      sampler,
      epsilons,
      best,
      callbacks,
      show_progress,
    )
    _expect_evaluated(store)
    report.write_report(store, process, data, pictures=pictures)
    if best is not None:
      best.write_summary(process, data)
  return run_lib.Run(
    output_dir,
    process=process,
    data=data,
    continue_with=functools.partial(
      run,
      process,
      data,
      output_dir,
      resume=True,
      runtime_options=runtime_options,
      accounting=accounting,
      keep_best=keep_best,
      callbacks=callbacks,
      show_progress=show_progress,
      **arguments_of(config),
    ),
  )


def arguments_of(settings: Mapping[str, Any]) -> dict[str, Any]:
  """The arguments of `run` that make these settings, but `num_rounds`."""
  named = (
    'cohort_size',
    'dropout_rate',
    'rounds_per_evaluation',
    'num_final_evaluations',
  )
  own = ('num_rounds', 'runtime', *named, *RECORDED)
  return {
    **{name: settings[name] for name in (*named, 'runtime')},
    'settings': {n: v for n, v in settings.items() if n not in own},
  }


class _Best:
  """Keeps a copy of the store after the best evaluation."""

  def __init__(self, store: run_store.RunStore):
    self._store = store
    self.directory = os.path.join(store.directory, run_lib.BEST_NAME)
    # A run that was stopped between a commit and its copy.
    self.update()

  def update(self) -> None:
    """Copies the store if its newest round is the best."""
    evaluations = self._store.evaluations()
    if not evaluations or evaluations[-1]['round'] != self._store.last_round:
      return
    metric = report.primary_metric(evaluations)
    rounds, values = report.series(evaluations, metric)['personal']
    figures = summary_lib.over_rounds(
      rounds, values, self._store.last_round, metric
    )
    if figures['best_round'] == self._store.last_round:
      self._store.copy_to(self.directory)

  def write_summary(self, process, data) -> None:
    """Writes the report's figures of the copy, without its pictures."""
    # A run that is resumed may have no copy, if it was better before.
    if run_store.has_run(self.directory):
      with run_store.RunStore.open_for_reading(self.directory) as store:
        report.write_summary(store, process, data)


def _options_of_runtime(runtime, options, model, data, sampler):
  """The options, with devices that are fast for the size of a round."""
  most = options.get('max_concurrent_clients')
  if isinstance(most, numbers.Integral):
    # More never run together: in a round, in a call of the evaluation.
    bound = max(
      sampler.cohort_size,
      runtime_base.CLIENTS_PER_CALL,
      cores.num_usable_cores(),
    )
    options = {**options, 'max_concurrent_clients': min(most, bound)}
  devices = options.get('devices', 'auto')
  if runtime != 'in_process' or not devices_lib.are_open(devices):
    return options
  devices, reason = devices_lib.for_work(
    sum(np.size(value) for value in model.initial_weights.values()),
    sum(data.num_train_examples(data.client_ids[i]) for i in sampler.sample(1)),
  )
  print(reason, file=sys.stderr)
  return {**options, 'devices': devices}


def expect_room(
  hparams: Mapping[str, Any], num_clients: int, cohort_size: int
) -> None:
  """Raises `ValueError` if a method was made for other numbers of clients."""
  known = hparams.get('num_clients')
  errors.expect(
    known in (None, num_clients),
    'hparams.num_clients',
    f'{num_clients}, the number of all clients, or None',
    known,
  )
  room = hparams.get('max_cohort_size', cohort_size)
  errors.expect(
    room >= cohort_size,
    'hparams.max_cohort_size',
    f'at least {cohort_size}, the size of a cohort',
    room,
  )


def _expect_fit(process, data, cohort_size):
  """Raises `ValueError` if process and data do not fit together."""
  hparams = process.description['hparams']
  expect_room(hparams, data.num_clients, cohort_size)
  client_population.check_data_fit(process.model, data)
  client_population.check_test_examples(data)
  # Traced now, so that what cannot be scored fails before the first round.
  process.evaluate_clients  # noqa: B018


def _expect_accounting_of(process, sampler, accounting):
  """Raises `ValueError` if it is of other cohorts or of other noise."""
  errors.expect(
    accounting.sampler == sampler,
    'accounting.sampler',
    f'that of the run, {sampler}',
    accounting.sampler,
  )
  noise = process.description.get('aggregator_arguments', {})
  errors.expect(
    noise.get('noise_multiplier') == accounting.noise_multiplier
    and noise.get('clients_per_round') == sampler.cohort_size,
    'accounting',
    "of the noise that the process's aggregator adds, a private mean for"
    f' {sampler.cohort_size} clients',
    f'noise multiplier {accounting.noise_multiplier} for an aggregator with'
    f' {noise or "no noise"}',
  )


def _settings_of_run(process, data, sizes, runtime, settings):
  """The arguments and the settings in one dict; they must not differ."""
  arguments = {
    'algorithm': process.name,
    'dataset': data.name,
    'num_clients': data.num_clients,
    **sizes,
    'seed': process.seed,
    'runtime': runtime,
    'process': process.description,
    client_population.FINGERPRINT: data.fingerprint,
  }
  for name, value in arguments.items():
    errors.expect(
      settings.get(name, value) == value,
      'settings',
      f'without {name!r}, or with the value given as an argument, {value!r}',
      settings.get(name),
    )
  config = {**arguments, **settings}
  if 'model' not in config:
    # It may take seconds.
    config['model'] = description.describe(process.model)
  config.setdefault('hparams', process.description['hparams'])
  return config


def check_unchanged(
  process: personalized_process.PersonalizedProcess, store: run_store.RunStore
) -> None:
  """Raises `RunError` if a run is another process's, or its model's."""
  config = store.config
  found = {'process': value_codec.to_json(process.description)}
  if 'shapes' in config.get('model', ''):
    found['model'] = description.describe(process.model)
  differences = run_store.differences(
    {name: config.get(name) for name in found}, found
  )
  if differences:
    raise errors.RunError(
      f'The run in {store.directory} was made otherwise: {differences}. Build '
      'the model and the process as then; of a Keras model set the seed before '
      '(keras.utils.set_random_seed).'
    )


def _expect_same_metrics(model, store):
  """Raises `RunError` if a run's scores have other names than a model's."""
  for evaluation in store.evaluations()[-1:]:
    found = sorted(evaluation['personal'])
    wanted = sorted(['loss', *model.metrics, *model.client_metrics])
    if found != wanted:
      raise errors.RunError(
        f'Cannot resume the run in {store.directory}, which is scored by '
        f'{", ".join(found)}, with a model that is scored by '
        f'{", ".join(wanted)}: give the model the metrics of the run.'
      )


def _expect_evaluated(store: run_store.RunStore) -> None:
  """Raises `RunError` if the last round has no evaluation to report.

  That is so for a run that was stopped in a round and is now asked for no more.
  """
  evaluations = store.evaluations()
  if not evaluations or evaluations[-1]['round'] != store.last_round:
    raise errors.RunError(
      f'The run in {store.directory} was stopped after round '
      f'{store.last_round}, which was not evaluated; its report needs '
      f'num_rounds of at least {store.last_round + 1}.'
    )


def _train(
  runtime,
  process,
  data,
  store,
  sampler,
  epsilons,
  best,
  callbacks,
  show_progress,
):
  """Runs the rounds that are left, or says that there are none."""
  config = store.config
  num_rounds = config['num_rounds']
  if store.last_round == num_rounds:
    print(
      f'The run in {store.directory} has its {num_rounds} rounds: nothing is '
      'trained, only its report is written.',
      file=sys.stderr,
    )
    return
  rounds = stored_rounds.StoredRounds(process, runtime, data, store)
  with contextlib.ExitStack() as stack:
    writers = stack.enter_context(
      metrics_writers.MetricsWriters(store.directory, store.history())
    )
    bar = stack.enter_context(
      tqdm.tqdm(
        total=num_rounds,
        initial=store.last_round,
        desc=process.name,
        unit='round',
        disable=not show_progress,
        # A log file gets a line now and then, a terminal a live bar.
        mininterval=0.1 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
      )
    )
    shown = {}
    num_left_out = 0
    for round_number in range(store.last_round + 1, num_rounds + 1):
      cohort = sampler.sample(round_number)
      start = time.perf_counter()
      metrics = rounds.run_round(cohort)
      metrics['seconds'] = time.perf_counter() - start
      if epsilons is not None:
        metrics['epsilon'] = epsilons[round_number - 1]
      scores = {}
      if (
        round_number % config['rounds_per_evaluation'] == 0
        or round_number > num_rounds - config['num_final_evaluations']
      ):
        evaluation = personalized_evaluation.evaluate(
          process,
          runtime,
          rounds.state,
          rounds.client_states,
          data,
          rounds.train,
          rounds.test,
          client_population.unscored_clients(process, data, round_number),
        )
        scores['per_client'] = evaluation.rows
        scores['evaluation'] = evaluation.summary
      # After the evaluation, which holds the data of many clients.
      metrics['rss_mb'] = round(machine.resident_mb(), 1)
      rounds.commit(metrics, **scores)
      row = {'round': round_number, **metrics}
      if scores:
        row['evaluation'] = scores['evaluation']
        shown.update(_shown(scores['evaluation']))
        if best is not None:
          best.update()
      writers.write(row)
      if callbacks:
        callbacks_lib.tell(
          callbacks,
          summary_lib.flat(row),
          summary_lib.frame(scores['per_client']) if scores else None,
        )
      if metrics['non_finite_clients']:
        num_left_out += metrics['non_finite_clients']
        shown['left_out'] = num_left_out
        if num_left_out == metrics['non_finite_clients']:
          logging.warning(
            'Round %d: %d of %d clients left out, for their training did not '
            'stay finite. Is the learning rate too high?',
            round_number,
            metrics['non_finite_clients'],
            len(cohort),
          )
      bar.set_postfix(loss=f'{metrics["loss"]:.3f}', **shown, refresh=False)
      bar.update()


def _shown(evaluation):
  name = report.primary_metric([evaluation]).name
  shown = {f'personal_{name}': f'{evaluation["personal"][name]:.3f}'}
  if evaluation['global'] is not None:
    shown[f'global_{name}'] = f'{evaluation["global"][name]:.3f}'
  domains = evaluation.get('domains')
  if domains is not None and name == 'accuracy':
    shown['min_domain'] = f'{domains["personal"][name]["min"]:.3f}'
  return shown
