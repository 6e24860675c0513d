"""Initial weights of a run: given ones, and a warm-up by FedAvg.

A run with `RunConfig.initial_run` starts from the model that another run ended
with, one with `initial_weights` from a file's. The weights are kept in the
run's folder when it begins, so that it goes on and can be opened whatever
becomes of the other run or the file. With a warm-up, too, it is the warm-up
that starts from them, and they are in its folder.

The warm-up is a run of its own, in the folder `warmup` of the run, with the
method's own local training (that of the body where head and body are trained in
turn) or as many epochs as it is given, and its rounds count from 0, as the
run's do after it. It has one model for all domains: heads of domains start as
copies of its head, the domain as input from 0. Its cohorts are of the size of
the run's first, among the clients that are there by then. It is trained or
resumed until the run has a round, and needed whenever the run is opened again,
for its method starts from the model that the warm-up ended with.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import tqdm

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.datasets import files
from tff_pfl.methods import registry
from tff_pfl.models import domain_models, split_model, weight_files
from tff_pfl.runs import client_population, run_store
from tff_pfl.system import folders

if TYPE_CHECKING:
  # It imports this module.
  from tff_pfl.runs import run_config

FOLDER = 'warmup'
INITIAL_WEIGHTS_NAME = 'initial_weights.npz'
INITIAL_RUN_PARTS = ('all', 'body')


def config_of(config: run_config.RunConfig) -> run_config.RunConfig:
  """The settings of a run's warm-up, from those of the run."""
  hparams = config.hparams
  known = hparams_lib.LocalTrainingHParams, hparams_lib.HeadAndBodyHParams
  errors.expect(
    isinstance(hparams, known),
    'num_warmup_rounds',
    f'0 for {config.algorithm}, whose local training is not described by '
    f'{" or ".join(owner.__name__ for owner in known)}',
    config.num_warmup_rounds,
  )
  body = 'body_' * isinstance(hparams, hparams_lib.HeadAndBodyHParams)
  training = {
    'num_epochs': getattr(hparams, f'num_{body}epochs'),
    'num_steps': getattr(hparams, f'num_{body}steps'),
    'learning_rate': getattr(hparams, f'{body}learning_rate'),
    'momentum': hparams.momentum,
    'optimizer': hparams.optimizer,
    'batch_size': hparams.batch_size,
  }
  if config.num_warmup_epochs is not None:
    training |= {'num_epochs': config.num_warmup_epochs, 'num_steps': None}
  return dataclasses.replace(
    config,
    algorithm='fed_avg',
    hparams=registry.get_algorithm('fed_avg').hparams(**training),
    domain_model='shared',
    reweight_domains=(
      config.reweight_domains or getattr(hparams, 'reweight_domains', False)
    ),
    stateless=False,
    learning_rate_schedule='constant',
    server_learning_rate_schedule='constant',
    num_rounds=config.num_warmup_rounds,
    num_final_evaluations=1,
    num_warmup_rounds=0,
    num_warmup_epochs=None,
  )


def run(
  config: run_config.RunConfig,
  data: datasets.FederatedDataset,
  output_dir: str,
  **options: Any,
) -> split_model.SplitModel:
  """Copies or trains the initial weights of a run, as far as not yet done.

  Args:
    config: Settings of the run.
    data: Data of the run.
    output_dir: Folder of the run.
    **options: Further arguments of `RunConfig.run_process`.

  Returns:
    The model, see `with_initial_weights`.

  Raises:
    ValueError: If `initial_run` is no finished run of the same network with a
      global model, or `initial_weights` no file of the network's weights.
    RunError: If it cannot be read, or the warm-up cannot start or go on.
  """
  if run_store.has_run(output_dir):
    return with_initial_weights(config, data, output_dir)
  if config.num_warmup_rounds:
    before, folder = config_of(config), os.path.join(output_dir, FOLDER)
    model = _projected(config, run(before, data, folder))
    if options.get('show_progress', True):
      tqdm.tqdm.write(f'Warm-up of {config.algorithm}:')
    process = before.build_process(model)
    options['pictures'] = False
    before.run_process(process, data, folder, **options)
    return _warmed_up(config, model, process, folder)
  if _given(config):
    model = config.build_model(data)
    if config.initial_run is None:
      given = weight_files.with_weights(model, config.initial_weights)
      weights = given.initial_weights
    else:
      weights = _model_of_run(config, model)
    os.makedirs(output_dir, exist_ok=True)
    path = os.path.join(output_dir, INITIAL_WEIGHTS_NAME)
    with folders.atomic_file(path, 'wb') as file:
      np.savez(file, **weights)
  return with_initial_weights(config, data, output_dir)


def with_initial_weights(
  config: run_config.RunConfig,
  data: datasets.FederatedDataset,
  output_dir: str,
) -> split_model.SplitModel:
  """The model with the weights that a run's method starts from.

  Args:
    config: Settings of the run.
    data: Data of the run.
    output_dir: Folder of the run, after `run`.

  Raises:
    ValueError: If the given weights that were kept are damaged.
    RunError: If they are missing, or the warm-up is missing, damaged or of
      another length.
  """
  if not config.num_warmup_rounds:
    model = config.build_model(data)
    if not _given(config):
      return model
    path = os.path.join(output_dir, INITIAL_WEIGHTS_NAME)
    if not os.path.exists(path):
      raise errors.RunError(
        f'There is no {INITIAL_WEIGHTS_NAME} in {output_dir}, where a run with '
        f'{_given(config)} keeps the weights that it starts from: restore the '
        'file, or give the settings that the run was begun with.'
      )
    kept = files.read_npz(path, list(model.initial_weights))
    return dataclasses.replace(
      model, initial_weights=collections.OrderedDict(kept)
    )
  folder = os.path.join(output_dir, FOLDER)
  if not run_store.has_run(folder):
    raise errors.RunError(
      f'Expected the {config.num_warmup_rounds} rounds of num_warmup_rounds in '
      f'{folder}, found no run. Give the number that the run in {output_dir} '
      'was begun with, or restore the folder.'
    )
  before = config_of(config)
  model = _projected(config, with_initial_weights(before, data, folder))
  return _warmed_up(config, model, before.build_process(model), folder)


def _warmed_up(config, model, process, folder):
  """The run's model with the weights that its warm-up ended with.

  Args:
    model: Model of the warm-up.
    process: Process of the warm-up.
    folder: Folder of the warm-up.
  """
  with run_store.RunStore.open_for_reading(folder) as store:
    if store.last_round != config.num_warmup_rounds:
      raise errors.RunError(
        f'Expected the {config.num_warmup_rounds} rounds of num_warmup_rounds '
        f'in {folder}, found {store.last_round}. Give the number that the run '
        'was begun with.'
      )
    found = _last_weights(process, store)
  weights = collections.OrderedDict(
    (name, np.asarray(found[name])) for name in model.initial_weights
  )
  return domain_models.domain_model(
    dataclasses.replace(model, initial_weights=weights),
    config.domain_model,
    reweighted=config.reweight_domains,
  )


def _given(config):
  """The setting that gives initial weights; '' if there is none."""
  names = ('initial_run', 'initial_weights')
  return next((n for n in names if getattr(config, n) is not None), '')


def _model_of_run(config, model):
  """The model's weights, with those that `initial_run` ended with."""
  directory = config.initial_run
  with run_store.RunStore.open_for_reading(directory) as store:
    other = type(config).from_settings(store.config)
    errors.expect(
      store.last_round == other.num_rounds,
      'initial_run',
      f'a finished run, with its {other.num_rounds} rounds',
      f'{store.last_round} in {directory}',
    )
    own_model = with_initial_weights(other, other.load_data(), directory)
    process = other.build_process(own_model)
    errors.expect(
      process.has_global_model,
      'initial_run',
      'a run with a global model, such as one of fed_avg',
      f'{other.algorithm} with statistics={other.statistics}, which has none, '
      f'in {directory}',
    )
    found = _last_weights(process, store)
  if config.initial_run_part == 'body':
    body = process.model.weight_names(process.model.body_layers)
    own_head = model.weight_names(model.head_layers)
    found = {
      **split_model.select(found, body),
      **split_model.select(model.initial_weights, own_head),
    }
  for name in dict.fromkeys([*model.initial_weights, *found]):
    wanted_shape, found_shape = (
      f'{name} of shape {np.shape(weights[name])}'
      if name in weights
      else f'no {name}'
      for weights in (model.initial_weights, found)
    )
    errors.expect(
      wanted_shape == found_shape,
      'initial_run',
      f'a run of the same network, with {wanted_shape}',
      f'{found_shape} in {directory}',
    )
  return {name: np.asarray(found[name]) for name in model.initial_weights}


def _last_weights(process, store):
  """The weights of a process' model after the last round of a run."""
  with runtime_lib.given_or_on_cpu(None) as runtime:
    state = client_population.server_state(process, runtime, store)
  # What is not global is as it is for a client without data: as at the start.
  return {**process.model.initial_weights, **state.global_weights}


def _projected(config, model):
  """The model that the method will make heads of domains of, if it does."""
  dimension = getattr(config.hparams, 'projection_dim', None)
  return domain_models.projected(model, dimension) if dimension else model
