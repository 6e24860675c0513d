"""FedSA-LoRA: low-rank adapters of dense layers, with one factor shared.

The network is frozen and should be pretrained (`--initial_run`). Each adapted
dense layer adds to its kernel W_0 `[inputs, outputs]` a product of two thin
matrices, A `[inputs, r]` and B `[r, outputs]`:

    W = W_0 + alpha / r A B

    client:  for E epochs:  A, B_i, head_i <- SGD, all together
    server:  A <- sum_i n_i A_i / sum_i n_i

A starts from a normal distribution of variance 1 / inputs and B from 0, so the
network is unchanged at first. Only A is sent. W_0 is part of the model on both
sides and is never sent. A client's model is the network itself with W instead
of W_0. A client that never took part fits B and the head with A frozen.

Symbols (the paper's are transposed): r -> rank, alpha -> scaling, A ->
`layer/kernel/shared`, B -> `layer/kernel/personal`, E -> num_epochs, eta ->
learning_rate.

Deviations from the paper: the adapters' inputs have no dropout, and the whole
network runs in inference mode (its own dropout is off, moving statistics stay).
All dense layers below the head are adapted by default (in the paper, two of
each attention block). The head is trained in full and stays on its client, as
in the authors' program for classification. If `train_head=False`, it is frozen,
as in their program for generation.

References:
  Guo, Zeng, Wang, Fan, Wang, Qu: Selective Aggregation for Low-Rank Adaptation
  in Federated Learning, ICLR 2025.
  Hu et al.: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.
"""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.core import client_work, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model


@fields.dataclass
class FedSaLoraHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedSA-LoRA: local training and the adapters.

  Attributes:
    rank: Rank of the adapters (r), at least 1.
    scaling: Scale of the adapters (alpha), positive. Their product is
      multiplied by scaling / rank.
    adapted_layers: Names of the dense layers to adapt, separated by commas.
      None adapts all that are not in a trained head.
    train_head: True to train each client's own head. If False, the head is
      frozen unless it is adapted.
    adapter_seed: Seed of A's initial values.
  """

  rank: fields.Size = 8
  scaling: fields.Positive = 16.0
  adapted_layers: Optional[str] = None
  train_head: bool = True
  adapter_seed: fields.Seed = 0


def adapted_kernels(
  model: split_model.SplitModel, hparams: FedSaLoraHParams
) -> list[str]:
  """Names of the kernels that get adapters."""
  adapted = [n for n in model.initial_weights if n.endswith('/lora_kernel_a')]
  errors.expect(
    not adapted,
    'model',
    "one without Keras's adapters (enable_lora)",
    ', '.join(adapted),
  )
  trained = model.head_layers if hparams.train_head else ()
  kernels = {
    layer: units.kernels[0]
    for layer, units in model.units.items()
    # A recurrent layer has two kernels, a convolution one with more axes.
    if len(units.kernels) == 1
    and model.initial_weights[units.kernels[0]].ndim == 2
    and layer not in trained
  }
  layers = list(kernels)
  if hparams.adapted_layers is not None:
    layers = [name.strip() for name in hparams.adapted_layers.split(',')]
  for layer in layers or [None]:
    errors.expect(
      layer in kernels,
      'adapted_layers',
      'names of dense layers that are not trained in full '
      f'({", ".join(kernels) or "the model has none"})',
      layer,
    )
  return [kernels[layer] for layer in kernels if layer in layers]


@registry.method(
  'low-rank adapters of dense layers: one factor global, one local',
  FedSaLoraHParams,
  unsupported=('reweight_domains',),
)
def fed_sa_lora(model, hparams):
  """FedSA-LoRA for models with dense layers that can be adapted."""
  kernels = adapted_kernels(model, hparams)
  rng = np.random.default_rng([hparams.adapter_seed, *b'adapters'])
  initial_shared, initial_local = (collections.OrderedDict() for _ in range(2))
  for name in kernels:
    kernel = model.initial_weights[name]
    inputs, outputs = kernel.shape
    a = rng.normal(0, inputs**-0.5, [inputs, hparams.rank]).astype(kernel.dtype)
    b = np.zeros([hparams.rank, outputs], kernel.dtype)
    initial_shared[f'{name}/shared'] = a
    initial_local[f'{name}/personal'] = b
  if hparams.train_head:
    for name in model.weight_names(model.head_layers):
      if name not in model.statistics:
        initial_local[name] = model.initial_weights[name]

  def network(weights):
    """The network's weights, from A, B and the head."""
    whole = {**model.initial_weights, **weights}
    for name in kernels:
      product = tf.matmul(
        weights[f'{name}/shared'], weights[f'{name}/personal']
      )
      whole[name] += hparams.scaling / hparams.rank * product
    return collections.OrderedDict(
      (name, tf.convert_to_tensor(whole[name]))
      for name in model.initial_weights
    )

  def fit(client, weights, frozen, phase):
    def forward(weights, x, mode):
      mode = mode._replace(training=False)
      return model.forward(network({**frozen, **weights}), x, mode)[0], {}

    objective = objectives.prediction_loss(model, forward)
    return client.sgd(objective, weights, phase)

  def train(client):
    both = {**client.received, **client.local}
    trained = fit(client, both, {}, hparams.phase())
    local = split_model.select(trained.weights, client.local)
    return client.result(trained, local=local)

  def fit_new_client(client, num_epochs):
    phase = hparams.phase(num_epochs)
    return fit(client, client.local, client.received, phase).weights

  return client_work.ClientWork(
    model,
    [client_work.Exchange(train)],
    initial_global=initial_shared,
    initial_local=initial_local,
    personal_weights=lambda broadcast, local: network(
      {**broadcast.global_weights, **local}
    ),
    fit_new_client=fit_new_client,
  )
