"""Start of a run: initial weights from elsewhere, and a warm-up by FedAvg.

The weights that a run starts from are kept in the run's folder when it begins,
so that it goes on and can be opened whatever becomes of the other run or the
file that they are from. With a warm-up, the warm-up starts from them, and they
are in its folder.

The warm-up is a run of its own, in the folder `warmup` of the run, with the
method's own local training (of the body, where head and body are trained in
turn), or as many epochs as it is given. Its rounds count from 0, and so do the
run's after it. It has one model for all domains: heads of domains start as
copies of its head, the domain as input from 0. Its cohorts are of the size of
the run's first, among the clients that are there by then. It is trained or
resumed until the run has a round, and needed whenever the run is opened again,
for its method starts from the model that the warm-up ended with.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any, Literal, Optional

import numpy as np

from tff_pfl import errors, fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import personalized_process
from tff_pfl.datasets import files
from tff_pfl.models import split_model
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import run_store
from tff_pfl.system import folders

FOLDER = 'warmup'
WEIGHTS_NAME = 'initial_weights.npz'


@fields.dataclass
class Start:
  """Model that a run starts from; by default one with random weights.

  Attributes:
    initial_run: Folder of a finished run of the same network, from whose global
      model this run, or its warm-up, starts.
    initial_run_part: Part of the model of --initial_run that is taken: all, or
      the body alone, with a random head, as where the other run had other
      classes.
    initial_weights: File of weights that this run, or its warm-up, starts from
      (.npz, .h5, .keras, .safetensors), such as the weights of a network of
      keras.applications. The last layers start at random where the file has
      none that fit.
    num_warmup_rounds: Rounds of FedAvg before the rounds of the run, with the
      local training of the method (or of each baseline), which starts from
      their model.
    num_warmup_epochs: Local epochs of the warm-up's rounds; None for the local
      training of the method.
  """

  initial_run: Optional[fields.Path] = None
  initial_run_part: Literal['all', 'body'] = 'all'
  initial_weights: Optional[fields.Path] = None
  num_warmup_rounds: fields.CountOrZero = 0
  num_warmup_epochs: Optional[fields.Count] = None

  def __post_init__(self):
    for name in ('initial_run', 'initial_weights'):
      path = getattr(self, name)
      if path is not None:
        object.__setattr__(self, name, os.path.abspath(path))
    errors.expect(
      self.initial_weights is None
      or (self.initial_run is None and self.initial_run_part == 'all'),
      'initial_weights',
      'unset with `initial_run` and `initial_run_part`',
      self.initial_weights,
    )

  @property
  def has_weights(self) -> bool:
    """True if the weights are another run's or a file's."""
    return self.initial_run is not None or self.initial_weights is not None


def warm_up_training(hparams: Any) -> dict[str, Any]:
  """The hyperparameters of FedAvg in the warm-up of a method.

  Raises:
    ValueError: If the method has no local training that FedAvg could have.
  """
  known = hparams_lib.LocalTrainingHParams, hparams_lib.HeadAndBodyHParams
  errors.expect(
    isinstance(hparams, known),
    'num_warmup_rounds',
    '0 for a method whose local training is not described by '
    f'{" or ".join(owner.__name__ for owner in known)}',
    type(hparams).__name__,
  )
  body = 'body_' * isinstance(hparams, hparams_lib.HeadAndBodyHParams)
  return {
    'num_epochs': getattr(hparams, f'num_{body}epochs'),
    'num_steps': getattr(hparams, f'num_{body}steps'),
    'learning_rate': getattr(hparams, f'{body}learning_rate'),
    'momentum': hparams.momentum,
    'optimizer': hparams.optimizer,
    'batch_size': hparams.batch_size,
  }


def weights_of_run(
  model: split_model.SplitModel, run: run_lib.Run, part: str
) -> split_model.Weights:
  """The weights of a model, as a finished run has them.

  Args:
    part: As `Start.initial_run_part`.

  Raises:
    ValueError: If the run is not finished, has no global model, or another
      network.
  """
  process, rounds = run.process, run.settings.rounds
  errors.expect(
    run.last_round == rounds.num_rounds,
    'initial_run',
    f'a finished run, with its {rounds.num_rounds} rounds',
    f'{run.last_round} in {run.directory}',
  )
  errors.expect(
    process.has_global_model,
    'initial_run',
    'a run with a global model, such as one of fed_avg',
    f'{process.name} with statistics={process.description["statistics"]}, '
    f'which has none, in {run.directory}',
  )
  # What is not global is as it is for a client without data: as at the start.
  weights = {**process.model.initial_weights, **run.global_weights()}
  if part == 'body':
    body = process.model.weight_names(process.model.body_layers)
    own_head = model.weight_names(model.head_layers)
    weights = {
      **split_model.select(weights, body),
      **split_model.select(model.initial_weights, own_head),
    }
  for name in dict.fromkeys([*model.initial_weights, *weights]):
    wanted, found = (
      f'{name} of shape {np.shape(of[name])}' if name in of else f'no {name}'
      for of in (model.initial_weights, weights)
    )
    errors.expect(
      wanted == found,
      'initial_run',
      f'a run of the same network, with {wanted}',
      f'{found} in {run.directory}',
    )
  return {name: np.asarray(weights[name]) for name in model.initial_weights}


def keep(weights: split_model.Weights, folder: str) -> None:
  """Writes the weights that a run starts from into its folder."""
  os.makedirs(folder, exist_ok=True)
  with folders.atomic_file(os.path.join(folder, WEIGHTS_NAME), 'wb') as file:
    np.savez(file, **weights)


def with_kept(
  model: split_model.SplitModel, folder: str
) -> split_model.SplitModel:
  """The model with the weights that `keep` wrote.

  Raises:
    ValueError: If their file is damaged.
    RunError: If it is missing.
  """
  path = os.path.join(folder, WEIGHTS_NAME)
  if not os.path.exists(path):
    raise errors.RunError(
      f'There is no {WEIGHTS_NAME} in {folder}, where a run with initial_run '
      'or initial_weights keeps the weights that it starts from: restore the '
      'file, or give the settings that the run was begun with.'
    )
  kept = files.read_npz(path, list(model.initial_weights))
  return dataclasses.replace(
    model, initial_weights=collections.OrderedDict(kept)
  )


def with_warmed_up(
  model: split_model.SplitModel,
  process: personalized_process.PersonalizedProcess,
  folder: str,
  num_rounds: int,
) -> split_model.SplitModel:
  """The model with the weights that a warm-up ended with.

  Args:
    model: Model of the warm-up.
    process: Process of the warm-up.
    folder: Folder of the warm-up.
    num_rounds: Rounds that it must have.

  Raises:
    RunError: If the warm-up is missing, damaged or of another length.
  """
  run = run_lib.Run(folder, process=process)
  last_round = run.last_round if run_store.has_run(folder) else 0
  if last_round != num_rounds:
    raise errors.RunError(
      f'Expected the {num_rounds} rounds of num_warmup_rounds in {folder}, '
      f'found {last_round or "no run"}. Give the number that the run was begun '
      'with, or restore the folder.'
    )
  weights = {**process.model.initial_weights, **run.global_weights()}
  return dataclasses.replace(
    model,
    initial_weights=collections.OrderedDict(
      (name, np.asarray(weights[name])) for name in model.initial_weights
    ),
  )
