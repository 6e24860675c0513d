"""Rounds of FedAvg before a run, whose model is where its method starts.

The warm-up is a run of its own, in the folder `warmup` of the run, with the
method's own local training (that of the body where head and body are trained in
turn), and its rounds count from 0, as the run's do after it. It is trained or
resumed until the run has a round, and needed whenever the run is opened again:
what its method starts from is the model that the warm-up ended with.
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
from tff_pfl.algorithms import registry
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.models import domain_models, split_model
from tff_pfl.simulation import client_population, run_file, run_store

if TYPE_CHECKING:
  from tff_pfl.simulation import run_config

FOLDER = 'warmup'


def config_of(config: run_config.RunConfig) -> run_config.RunConfig:
  """The settings of a run's warm-up."""
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
  return dataclasses.replace(
    config,
    algorithm='fed_avg',
    hparams=registry.get_algorithm('fed_avg').hparams(**training),
    reweight_domains=(
      config.reweight_domains or getattr(hparams, 'reweight_domains', False)
    ),
    stateless=False,
    learning_rate_schedule='constant',
    server_learning_rate_schedule='constant',
    num_rounds=config.num_warmup_rounds,
    num_final_evaluations=1,
    num_warmup_rounds=0,
  )


def run(
  config: run_config.RunConfig,
  model: split_model.SplitModel,
  data: datasets.FederatedDataset,
  output_dir: str,
  **options: Any,
) -> split_model.SplitModel:
  """Runs what there is to do of the warm-up; returns `started`.

  Args:
    config: The run's settings.
    model: What `RunConfig.build_model` returned.
    data: The run's.
    output_dir: The run's folder.
    **options: Further arguments of `RunConfig.run_process`.
  """
  if config.num_warmup_rounds and not run_file.has_run(output_dir):
    if options.get('show_progress', True):
      tqdm.tqdm.write(f'Warm-up of {config.algorithm}:')
    config_of(config).run_process(
      _process(config, model), data, os.path.join(output_dir, FOLDER), **options
    )
  return started(config, model, output_dir)


def started(
  config: run_config.RunConfig,
  model: split_model.SplitModel,
  output_dir: str,
) -> split_model.SplitModel:
  """The model with the weights that the warm-up in a run's folder reached.

  Raises:
    RunError: If the warm-up is missing, damaged or of another length.
  """
  if not config.num_warmup_rounds:
    return model
  folder = os.path.join(output_dir, FOLDER)
  with run_store.RunStore.open_for_reading(folder) as store:
    if store.last_round != config.num_warmup_rounds:
      raise errors.RunError(
        f'Expected the {config.num_warmup_rounds} rounds of num_warmup_rounds '
        f'in {folder}, found {store.last_round}. Give the number that the run '
        'was begun with.'
      )
    with runtime_lib.given_or_on_cpu(None) as runtime:
      process = _process(config, model)
      state = client_population.server_state(process, runtime, store)
  weights = collections.OrderedDict(
    (name, np.asarray(value)) for name, value in state.global_weights.items()
  )
  return dataclasses.replace(_projected(config, model), initial_weights=weights)


def _process(config, model):
  """FedAvg of the warm-up; its loss is weighted if the method's is."""
  of_warm_up = config_of(config)
  model = _projected(config, model)
  if of_warm_up.reweight_domains and model.domains is not None:
    domains = dataclasses.replace(model.domains, reweighted=True)
    model = dataclasses.replace(model, domains=domains)
  return of_warm_up.build_process(model)


def _projected(config, model):
  """The model that the method will make heads of domains of, if it does."""
  dimension = getattr(config.hparams, 'projection_dim', None)
  return domain_models.projected(model, dimension) if dimension else model
