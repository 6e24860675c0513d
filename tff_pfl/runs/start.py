"""Start of a run: initial weights from elsewhere, and a warm-up with FedAvg.

A run copies its initial weights to its folder when it begins. So it can
continue and be opened even if the other run or the weight file is gone. If
there is a warm-up, it starts from these weights and has them in its folder.

The warm-up is a separate run, in the run's folder `warmup`. It uses the
method's local training, or `num_warmup_epochs` epochs. Methods that train head
and body in turn use the training of the body. The rounds of the warm-up count
from 0, and the run's rounds then start from 0 again. The warm-up has one model
for all domains. Heads of domains start as copies of its head, and a domain
input starts with zero weights. Its cohorts are the same as in the run's first
rounds. The warm-up is trained or resumed until the run has a committed round.
It is needed whenever the run is opened, because the method starts from its
model.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any, Literal, Optional

import numpy as np

from tff_pfl import datasets, errors, fields
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
  """Model that a run starts from, by default with random weights.

  Attributes:
    initial_run: Folder of a finished run of the same network. This run, or its
      warm-up, starts from its global model.
    initial_run_part: Part of the model of --initial_run to use: all, or only
      the body, with a random head, for example if the other run had other
      classes.
    initial_weights: File of weights (.npz, .h5, .keras) that this run, or its
      warm-up, starts from, such as the weights of a keras.applications network.
      The last layers start at random if the file has no weights that fit.
    num_warmup_rounds: Number of FedAvg rounds before the rounds of the run,
      with the local training of the method (or of each baseline). The method
      starts from their model.
    num_warmup_epochs: Number of local epochs in the warm-up's rounds. None uses
      the local training of the method.
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
    """True if the weights come from another run or a file."""
    return self.initial_run is not None or self.initial_weights is not None


def warm_up_training(hparams: Any) -> dict[str, Any]:
  """The hyperparameters of FedAvg in the warm-up of a method.

  Raises:
    ValueError: If the method has no local training that FedAvg can use.
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
  model: split_model.SplitModel,
  run: run_lib.Run,
  part: str,
  data: datasets.FederatedDataset,
) -> split_model.Weights:
  """The weights of a model from a finished run.

  Args:
    part: See `Start.initial_run_part`.
    data: Data of the model.

  Raises:
    ValueError: If the run is not finished, has no global model, another
      network, or other inputs or classes.
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
  both = (data, run.data)
  named = {
    'inputs': [one.encoding and one.encoding.input_names for one in both]
  }
  if part != 'body':
    named['classes'] = [one.class_names for one in both]
  for what, (own, before) in named.items():
    errors.expect(
      None in (own, before) or own == before,
      'initial_run',
      f'a run with the {what} {", ".join(own or ())}, in this order',
      f'{", ".join(before or ())} in {run.directory}',
    )
  # Weights that are not global keep their initial values, as for a client
  # without data.
  weights = {**process.model.initial_weights, **run.global_weights()}
  if part == 'body':
    body = process.model.weight_names(process.model.body_layers)
    own_head = model.weight_names(model.head_layers)
    weights = {
      **split_model.select(weights, body),
      **split_model.select(model.initial_weights, own_head),
    }
  for name in dict.fromkeys([*model.initial_weights, *weights]):
    expected, actual = (
      f'{name} of shape {np.shape(of[name])}' if name in of else f'no {name}'
      for of in (model.initial_weights, weights)
    )
    errors.expect(
      expected == actual,
      'initial_run',
      f'a run of the same network, with {expected}',
      f'{actual} in {run.directory}',
    )
  return {name: np.asarray(weights[name]) for name in model.initial_weights}


def keep(weights: split_model.Weights, folder: str) -> None:
  """Writes a run's initial weights to its folder."""
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
      'file, or give the settings that the run began with.'
    )
  weights = files.read_npz(path, list(model.initial_weights))
  return dataclasses.replace(
    model, initial_weights=collections.OrderedDict(weights)
  )


def with_warmed_up(
  model: split_model.SplitModel,
  process: personalized_process.PersonalizedProcess,
  folder: str,
  num_rounds: int,
) -> split_model.SplitModel:
  """The model with the final weights of a warm-up.

  Args:
    model: Model of the warm-up.
    process: Process of the warm-up.
    folder: Folder of the warm-up.
    num_rounds: Number of rounds that the warm-up must have.

  Raises:
    RunError: If the warm-up is missing, damaged or has another length.
  """
  run = run_lib.Run(folder, process=process)
  last_round = run.last_round if run_store.has_run(folder) else 0
  if last_round != num_rounds:
    raise errors.RunError(
      f'Expected the {num_rounds} rounds of num_warmup_rounds in {folder}, '
      f'found {last_round or "no run"}. Give the number that the run began '
      'with, or restore the folder.'
    )
  weights = {**process.model.initial_weights, **run.global_weights()}
  return dataclasses.replace(
    model,
    initial_weights=collections.OrderedDict(
      (name, np.asarray(weights[name])) for name in model.initial_weights
    ),
  )
