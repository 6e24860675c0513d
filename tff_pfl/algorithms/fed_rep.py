"""FedRep: a shared representation with personal heads.

Round t, client i of the cohort, with phi the global body and h_i the client's
own head:

    1. head: h_i <- SGD(h_i; phi_t frozen)       for num_head_epochs
    2. body: phi_i <- SGD(phi_t; h_i frozen)     for num_body_epochs
    server:  phi_{t+1} = sum_i n_i phi_i / sum_i n_i

The head starts from where the client left it (a first-time client from the
initial head) and is never sent. A client that never took part fits its head,
from the initial head, on the frozen body before it is scored.

While the body is frozen its outputs are constants: they are computed once a
round and all head epochs run on them.

Symbols:
  tau_h -> num_head_epochs or num_head_steps
  tau_phi -> num_body_epochs or num_body_steps
  alpha -> head_learning_rate, body_learning_rate (one value in the paper)
  r -> the cohort's share of the clients (an option of the experiment)

Deviations from the paper: its server takes the plain mean, which is
`client_weighting='uniform'`; by default clients weigh as many as they have
examples. The part that is frozen runs in inference mode, so that the dropout of
a frozen body is off (the paper's models have none).

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import objectives, randomness, training_loop
from tff_pfl.models import split_model, weight_partition
from tff_pfl.templates import (
  client_work,
  federated_round,
  personalized_process,
)

describe = hparams_lib.describe


@dataclasses.dataclass(frozen=True)
class FedRepHParams:
  """Hyperparameters of FedRep; defaults from the paper (CIFAR-10, 2 classes).

  Attributes:
    num_head_epochs: Epochs on the head in a round (tau_h).
    num_head_steps: If given, gradient steps on the head instead of epochs.
    num_body_epochs: Epochs on the body in a round (tau_phi).
    num_body_steps: If given, gradient steps on the body instead of epochs.
    head_learning_rate: Of the head's optimizer, positive.
    body_learning_rate: Of the body's optimizer, positive.
    momentum: Of SGD on both (adam does not read it), in [0, 1).
    optimizer: 'sgd' or 'adam', for both.
    batch_size: Examples per batch; None is the full batch.
  """

  num_head_epochs: int = describe('epochs on the head in a round', default=10)
  num_head_steps: Optional[int] = describe(
    'gradient steps on the head, instead of epochs', default=None
  )
  num_body_epochs: int = describe('epochs on the body in a round', default=1)
  num_body_steps: Optional[int] = describe(
    'gradient steps on the body, instead of epochs', default=None
  )
  head_learning_rate: float = describe("the head's learning rate", default=0.01)
  body_learning_rate: float = describe("the body's learning rate", default=0.01)
  momentum: float = describe('momentum of SGD on both', default=0.5)
  optimizer: str = describe('sgd or adam, for both', default='sgd')
  batch_size: Optional[int] = describe(
    'examples per batch; none for the full batch', default=10
  )

  def __post_init__(self):
    self.head_phase()
    self.body_phase()

  def head_phase(self) -> training_loop.Phase:
    """Step 1 of a round."""
    return self._phase(
      'head_',
      self.head_learning_rate,
      self.num_head_epochs,
      self.num_head_steps,
    )

  def body_phase(self) -> training_loop.Phase:
    """Step 2 of a round."""
    return self._phase(
      'body_',
      self.body_learning_rate,
      self.num_body_epochs,
      self.num_body_steps,
    )

  def _phase(self, role, learning_rate, num_epochs, num_steps):
    optimizer = training_loop.build_optimizer(
      self.optimizer, learning_rate, self.momentum, role=role
    )
    return training_loop.Phase(
      optimizer, self.batch_size, num_epochs, num_steps
    )


def build_fed_rep(
  model: split_model.SplitModel,
  hparams: FedRepHParams = FedRepHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds FedRep; the model's head layers are local.

  Args:
    model: The model; its body must have weights.
    hparams: Of the two steps.
    **options: aggregator, server optimizer, client weighting, personalisation,
      seed: see `federated_round.build_personalized_process`.
  """
  split_model.check_has_body(model, 'fed_rep')

  def train_head(body, head, examples, seed, num_epochs=None):
    phase = hparams.head_phase()
    if num_epochs is not None:
      phase = dataclasses.replace(phase, num_epochs=num_epochs, num_steps=None)
    return training_loop.train_head(
      model, body, head, examples, phase, seed
    ).weights

  def train(broadcast, head, examples, seed):
    body = broadcast.global_weights
    head = train_head(body, head, examples, randomness.fold_in(seed, 0))
    new_body, metrics = training_loop.train(
      objectives.body_loss(model, head),
      body,
      examples,
      hparams.body_phase(),
      randomness.fold_in(seed, 1),
      model=model,
    )
    return client_work.ClientResult(
      update=split_model.difference(body, new_body), local=head, metrics=metrics
    )

  def fit_new_client(broadcast, head, examples, seed, num_epochs):
    return train_head(
      broadcast.global_weights, head, examples, seed, num_epochs
    )

  return federated_round.build_personalized_process(
    'fed_rep',
    model,
    client_work.partitioned_weights_work(
      model,
      weight_partition.WeightPartition.by_layer(
        model, local_layers=model.head_layers
      ),
      train,
      fit_new_client=fit_new_client,
      can_forget=True,
    ),
    hparams=hparams,
    **options,
  )
