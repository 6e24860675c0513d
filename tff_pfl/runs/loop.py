"""The training loop: rounds, evaluations, a durable run and a report.

    for each round:
      sample a cohort from (seed, round), without clients that drop out
      process.next(server state, the cohort's client states, its training data)
      every `rounds_per_evaluation` rounds, and at the end: score all clients
      commit everything that changed in one transaction
      call the callbacks
    write the report

Committed rounds survive `kill -9`. A resumed run has the same cohorts and
seeds, so it ends exactly like an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tqdm
from absl import logging

from tff_pfl import datasets, errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import client_sampling, personalized_process, privacy
from tff_pfl.models import description
from tff_pfl.runs import callbacks as callbacks_lib
from tff_pfl.runs import (
  client_population,
  metrics_writers,
  report,
  run_store,
  stored_rounds,
  value_codec,
)
from tff_pfl.runs import evaluation as evaluation_lib
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.system import folders, machine

# Separates the draw of evaluated clients from other draws with the same seed.
_EVALUATED_STREAM = 0x6576616C
# The number of clients that are scored by default, if there are more.
_MOST_EVALUATED = 10_000


@fields.dataclass
class RunOptions:
  """Rounds, cohorts and evaluations of a run.

  Attributes:
    num_rounds: Number of training rounds. A resumed run may have more than
      before.
    cohort_size: Number of clients in a round. Without it and --participation,
      the default in Python is 10, or all clients if there are fewer.
    participation: Fraction of the clients in a round, in (0, 1], instead of
      --cohort_size.
    dropout_rate: Probability, in [0, 1), that a client of the cohort fails to
      report and is left out of the round.
    rounds_per_evaluation: Number of rounds between evaluations. The first round
      is always evaluated.
    num_final_evaluations: Number of last rounds that are all evaluated. If it
      is 10, "last 10 rounds" in a table is a mean over ten evaluations.
    num_evaluated_clients: Number of clients that are scored, drawn at random
      once for all evaluations. None scores all clients, or 10,000 if there are
      more.
    keep_best: True to also keep the models of the best evaluation, as a run in
      the folder best. Each new best evaluation costs a copy.
    runtime: Runtime that executes rounds. in_process uses this process, on its
      CPU cores or GPUs. native uses TFF's own C++ worker. ray uses a Ray
      cluster, on its CPU cores or GPUs.
  """

  num_rounds: fields.Count = 100
  cohort_size: Optional[fields.Count] = None
  participation: Optional[fields.PositiveShare] = None
  dropout_rate: fields.ShareBelowOne = 0.0
  rounds_per_evaluation: fields.Count = 10
  num_final_evaluations: fields.Count = 10
  num_evaluated_clients: Optional[fields.Count] = None
  keep_best: bool = False
  runtime: fields.one_of(runtime_lib.RUNTIMES) = runtime_lib.DEFAULT

  def __post_init__(self):
    errors.expect(
      self.cohort_size is None or self.participation is None,
      'participation',
      'unset with `cohort_size`',
      self.participation,
    )

  def cohorts(
    self, num_clients: int, seed: int, join_rounds: tuple[int, ...] = ()
  ) -> client_sampling.CohortSampler:
    """Makes the sampler of a run's cohorts.

    Args:
      num_clients: Total number of clients.
      seed: The run's seed, not negative.
      join_rounds: See `CohortSampler`.
    """
    size = self.cohort_size or min(10, num_clients)
    if self.participation is not None:
      # Halves are rounded up.
      size = max(1, math.floor(num_clients * self.participation + 0.5))
    return client_sampling.CohortSampler(
      num_clients, size, seed, self.dropout_rate, join_rounds
    )

  def is_evaluated(self, round_number: int) -> bool:
    """True if clients are scored after a round, counted from 1."""
    return (
      round_number == 1
      or round_number % self.rounds_per_evaluation == 0
      or round_number > self.num_rounds - self.num_final_evaluations
    )

  def evaluated_clients(
    self,
    process: personalized_process.PersonalizedProcess,
    data: datasets.FederatedDataset,
  ) -> list[int]:
    """Ascending indices of the clients that evaluations score.

    All have test examples, and none is attacked. One of them is there in the
    first round. No more clients than needed are read.
    """
    rng = np.random.default_rng([process.seed, _EVALUATED_STREAM])
    order = rng.permutation(data.num_clients).tolist()

    def tested(indices):
      return (
        index
        for index in indices
        if index not in process.attacked_clients
        and data.num_test_examples(data.client_ids[index])
      )

    number = self.num_evaluated_clients or _MOST_EVALUATED
    early = client_population.joined_clients(data, order, 1)
    first = next(tested(early), None)
    others = tested(index for index in order if index != first)
    chosen = [] if first is None else [first]
    return sorted([*chosen, *itertools.islice(others, number - len(chosen))])


@fields.checked_call
def run(
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  output_dir: str,
  *,
  options: Optional[RunOptions] = None,
  settings: Any = None,
  record: Optional[Mapping[str, Any]] = None,
  callbacks: Sequence[fields.instance_of(callbacks_lib.Callback)] = (),
  resume: bool = False,
  runtime_options: Optional[Mapping[str, Any]] = None,
  show_progress: bool = True,
  pictures: bool = True,
  **run_options: Any,
) -> run_lib.Run:
  """Trains and evaluates a method on a dataset.

      run = pfl.run(process, data, 'my_run', num_rounds=20, cohort_size=5)

  Args:
    process: The method. Its seed also draws the cohorts, so it must not be
      negative.
    data: The clients. `FederatedDataset.joining` sets which of them join later.
    output_dir: Folder of the run, with its store, metrics and report. The run
      stores descriptions of the process and of the model (layers, loss,
      metrics, shapes, a checksum of the initial weights, and outputs for some
      inputs). It can be resumed only with the same model, process and options,
      on the same data. To resume it, build the model with the same code and
      seeded initial weights.
    options: Options of the run. None uses the defaults.
    settings: The `Settings` that made `process` and `data`, as `Settings.run`
      passes them. None means any other process and data.
    record: Further identification of the run, as JSON types.
    callbacks: Listeners, called after each round and evaluation.
    resume: True to continue the run in `output_dir`, if there is one. If False,
      an existing run is an error.
    runtime_options: Keyword arguments of the runtime's class, which are not
      stored with the run.
    pictures: True to add pictures to the report.
    **run_options: Fields of `RunOptions` that override `options`.

  Returns:
    The run.

  Raises:
    RunError: If the run cannot start or continue. Committed rounds are safe.
  """
  options = dataclasses.replace(options or RunOptions(), **run_options)
  output_dir = folders.results_folder(output_dir, folders.RUN)
  cohorts = options.cohorts(
    data.num_clients, process.seed, client_sampling.join_rounds_of(data)
  )
  expect_fit(process.description['hparams'], cohorts)
  client_population.check_data_fit(process.model, data)
  client_population.check_test_examples(data, process.attacked_clients)
  # Traced now, so that errors in scoring appear before the first round.
  process.evaluate_clients  # noqa: B018
  num_late = sum(r > options.num_rounds for r in data.join_round.values())
  if num_late:
    logging.warning('%d clients join after the last round.', num_late)
  config = {
    'algorithm': process.name,
    'dataset': data.name,
    'num_clients': data.num_clients,
    'seed': process.seed,
    'rounds': fields.to_json(
      dataclasses.replace(
        options, cohort_size=cohorts.cohort_size, participation=None
      )
    ),
    'process': process.description,
    'data_sha256': data.fingerprint,
    **(record or {}),
  }
  if settings is None:
    # Only here, because it may take seconds.
    config['model'] = description.describe(process.model)
  else:
    config['settings'] = settings.to_record()
  accounting, epsilons = process.accounting, None
  if accounting is not None:
    errors.expect(
      accounting.sampler == cohorts,
      'process',
      f'one whose noise is for the cohorts of the run, {cohorts}',
      accounting.sampler,
    )
    most = accounting.num_rounds
    is_rebuilt = settings is not None and resume
    if most is not None and is_rebuilt and run_store.has_run(output_dir):
      # Settings build the process for the new number.
      with run_store.RunStore.open_for_reading(output_dir) as before:
        most = before.config['rounds']['num_rounds']
    errors.expect(
      most is None or options.num_rounds <= most,
      'num_rounds',
      f"at most {most}, the rounds that the process's epsilon covers",
      options.num_rounds,
    )
  with contextlib.ExitStack() as stack:
    # Before the store, so that an unknown runtime or unreachable workers leave
    # nothing behind.
    runtime = stack.enter_context(
      runtime_lib.create_runtime(
        options.runtime,
        **_options_of_runtime(
          options.runtime, runtime_options or {}, process.model, data, cohorts
        ),
      )
    )
    if accounting is not None:
      spent = accounting.for_states(runtime.run(process.initialize).aggregator)
      config['privacy'] = spent.description()
      epsilons = spent.epsilons(options.num_rounds)
      print(privacy.announcement(spent, epsilons), file=sys.stderr)
    store = stack.enter_context(
      run_store.RunStore.open(output_dir, config, resume=resume)
    )
    if data.encoding is not None:
      summary_lib.write_json(
        os.path.join(store.directory, run_lib.ENCODING_NAME),
        dataclasses.asdict(data.encoding),
      )
    # An existing copy must not fall behind.
    best = os.path.join(output_dir, run_lib.BEST_NAME)
    if not options.keep_best and not run_store.has_run(best):
      best = None
    if best is not None:
      # A run may have been stopped between a commit and its copy.
      _copy_if_best(store, store.evaluations(), best)
    if store.last_round == options.num_rounds:
      print(
        f'The run in {store.directory} already has its {options.num_rounds} '
        'rounds. Only its metrics and report are written.',
        file=sys.stderr,
      )
      with metrics_writers.MetricsWriters(store.directory, store.history()):
        pass
    else:
      rounds = stored_rounds.StoredRounds(process, runtime, data, store)
      _train(rounds, options, cohorts, epsilons, best, callbacks, show_progress)
    if store.evaluations()[-1]['round'] != store.last_round:
      # It was stopped between evaluations, and now needs no further round.
      raise errors.RunError(
        f'The run in {store.directory} was stopped after round '
        f'{store.last_round}, which was not evaluated; its report needs '
        f'num_rounds of at least {store.last_round + 1}.'
      )
    report.write_report(store, process, data, pictures=pictures)
    # A resumed run has no copy if an evaluation before `keep_best` was better.
    if best is not None and run_store.has_run(best):
      with run_store.RunStore.open_for_reading(best) as copy:
        summary_lib.write_json(
          os.path.join(best, report.SUMMARY_NAME),
          report.summarize(copy, process, data),
        )
  # The arguments for further rounds.
  again = {
    'runtime_options': runtime_options,
    'callbacks': callbacks,
    'show_progress': show_progress,
    'pictures': pictures,
    'record': record,
  }
  if settings is None:
    continue_with = functools.partial(
      run, process, data, output_dir, options=options, resume=True, **again
    )
  else:
    continue_with = functools.partial(
      settings.resume, output_dir, data=data, **again
    )
  return run_lib.Run(
    output_dir,
    process=process,
    data=data,
    settings=settings,
    continue_with=continue_with,
  )


def _copy_if_best(store, evaluations, folder):
  """Copies the store to a folder if the last of its evaluations is best."""
  evaluations = report.counted(evaluations, store.config['rounds'])
  rounds = [one['round'] for one in evaluations]
  if rounds[-1:] != [store.last_round]:
    return
  metric = report.primary_metric(evaluations)
  values = [one['personal'][metric.name] for one in evaluations]
  figures = summary_lib.over_rounds(rounds, values, store.last_round, metric)
  if figures['best_round'] == store.last_round:
    store.copy_to(folder)


def _options_of_runtime(runtime, options, model, data, sampler):
  """The options, with fast devices for the size of a round if none are set."""
  devices = options.get('devices', 'auto')
  if runtime != 'in_process' or not devices_lib.are_open(devices):
    return options
  devices, reason = devices_lib.for_work(
    sum(np.size(value) for value in model.initial_weights.values()),
    sum(data.num_train_examples(data.client_ids[i]) for i in sampler.sample(1)),
  )
  print(reason, file=sys.stderr)
  return {**options, 'devices': devices}


def expect_fit(
  hparams: Mapping[str, Any], cohorts: client_sampling.CohortSampler
) -> None:
  """Raises `ValueError` if a method was made for other numbers of clients."""
  known = hparams.get('total_clients')
  errors.expect(
    known in (None, cohorts.num_clients),
    'hparams.total_clients',
    f'{cohorts.num_clients}, the number of all clients, or None',
    known,
  )
  room = hparams.get('max_cohort_size', cohorts.cohort_size)
  errors.expect(
    room >= cohorts.cohort_size,
    'hparams.max_cohort_size',
    f'at least {cohorts.cohort_size}, the size of a cohort',
    room,
  )


def check_unchanged(
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  store: run_store.RunStore,
) -> None:
  """Raises `RunError` if a run had another process, model or data."""
  client_population.check_unchanged(data, store)
  config = store.config
  current = {'process': value_codec.to_json(process.description)}
  if 'model' in config:
    current['model'] = description.describe(process.model)
  differences = run_store.differences(
    {name: config.get(name) for name in current}, current
  )
  if differences:
    raise errors.RunError(
      f'The run in {store.directory} was made differently: {differences}. '
      'Build the same model and process. Set the seed before you build a Keras '
      'model (keras.utils.set_random_seed).'
    )


def _train(rounds, options, cohorts, epsilons, best, callbacks, show_progress):
  """Runs the remaining rounds."""
  process, data, store = rounds.process, rounds.data, rounds.store
  evaluated = options.evaluated_clients(process, data)
  # Read once, because there may be many.
  evaluations = [] if best is None else store.evaluations()
  with (
    metrics_writers.MetricsWriters(store.directory, store.history()) as writers,
    tqdm.tqdm(
      total=options.num_rounds,
      initial=store.last_round,
      desc=process.name,
      unit='round',
      disable=not show_progress,
      # A log file gets few lines, and a terminal a live bar.
      mininterval=0.1 if sys.stderr.isatty() else 10,
      dynamic_ncols=True,
    ) as bar,
  ):
    shown = {}
    num_left_out = 0
    for round_number in range(store.last_round + 1, options.num_rounds + 1):
      cohort = cohorts.sample(round_number)
      start = time.perf_counter()
      metrics = rounds.run_round(cohort)
      metrics['seconds'] = time.perf_counter() - start
      if epsilons is not None:
        metrics['epsilon'] = epsilons[round_number - 1]
      scores = {}
      if options.is_evaluated(round_number):
        evaluation = evaluation_lib.evaluate(
          process,
          rounds.runtime,
          rounds.state,
          rounds.client_states,
          data,
          rounds.train,
          rounds.test,
          client_population.joined_clients(data, evaluated, round_number),
        )
        scores['per_client'] = evaluation.rows
        scores['evaluation'] = evaluation.summary
      # After the evaluation, which loads the data of many clients.
      metrics['rss_mb'] = round(machine.resident_mb(), 1)
      rounds.commit(metrics, **scores)
      row = {'round': round_number, **metrics}
      if scores:
        row['evaluation'] = scores['evaluation']
        shown.update(_shown(scores['evaluation']))
        if best is not None:
          evaluations.append({'round': round_number, **scores['evaluation']})
          _copy_if_best(store, evaluations, best)
      writers.write(row)
      for callback in callbacks:
        callback.on_round(round_number, _numbers(metrics))
        if scores:
          callback.on_evaluation(
            round_number,
            _numbers(scores['evaluation']),
            summary_lib.frame(scores['per_client']),
          )
      left_out = metrics['non_finite_clients']
      if left_out:
        if not num_left_out:
          logging.warning(
            'Round %d: %d of %d clients are left out because their results are '
            'not finite. The learning rate may be too high.',
            round_number,
            left_out,
            len(cohort),
          )
        num_left_out += left_out
        shown['left_out'] = num_left_out
      bar.set_postfix(loss=f'{metrics["loss"]:.3f}', **shown, refresh=False)
      bar.update()


def _numbers(metrics):
  return {
    name: float(value)
    for name, value in summary_lib.flat(metrics).items()
    if isinstance(value, (int, float))
  }


def _shown(evaluation):
  name = report.primary_metric([evaluation]).name
  shown = {f'personal_{name}': f'{evaluation["personal"][name]:.3f}'}
  if evaluation['global'] is not None:
    shown[f'global_{name}'] = f'{evaluation["global"][name]:.3f}'
  domains = evaluation.get('domains')
  if domains is not None and name == 'accuracy':
    shown['min_domain'] = f'{domains["personal"][name]["min"]:.3f}'
  return shown
