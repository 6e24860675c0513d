"""Models for examples with domains, made from any model.

    with_domains     the model itself, with domains for the evaluation only
    domain_model     one of `KINDS` by name, with a re-weighted loss or without
    multi_head       a shared body and a head for each domain
    all_head         a model without a body, for separate models by multi_head
    domain_as_input  the domain, one-hot, as further features of a linear head
    projected        a linear layer between the body and a linear head

The body's features become `OrderedDict(inputs=features, domain=domain)`, so
that a head can be trained on a frozen body as usual.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import datasets, errors
from tff_pfl.models import copies, domains, split_model


def with_domains(
  model: split_model.SplitModel,
  data: Union[domains.Domains, datasets.FederatedDataset],
) -> split_model.SplitModel:
  """Returns the model for data with domains, which it ignores.

  Scores are then also reported by domain.

  Args:
    model: Takes examples `{x, y}`.
    data: The domains, or a dataset with or without domains.

  Returns:
    The same model for examples `{x, y, domain}`. Its `x` is
    `OrderedDict(inputs=..., domain=...)`, and its `layer_outputs` takes the
    inputs. A dataset without domains gives the model itself.
  """
  if isinstance(data, datasets.FederatedDataset):
    if data.domain_names is None:
      return model
    counts = data.domain_counts().sum(axis=0).tolist()
    data = domains.Domains(
      data.domain_names, tuple(counts), sum(counts) / data.num_clients
    )
  errors.expect(
    model.domains is None, 'model', 'one without domains', model.domains
  )
  return dataclasses.replace(
    model,
    domains=data,
    element_spec=collections.OrderedDict(
      [*model.element_spec.items(), ('domain', tf.TensorSpec([], tf.int32))]
    ),
    body=lambda weights, x, mode=split_model.INFERENCE: model.body(
      weights, x['inputs'], mode
    ),
  )


def domain_model(
  model: split_model.SplitModel, kind: str, *, reweighted: bool = False
) -> split_model.SplitModel:
  """Makes a model that uses the domains.

  Args:
    model: A model with domains. 'shared' without `reweighted` takes any model.
    kind: 'shared' for the model itself, 'multi_head' for a head for each
      domain, 'input' for the one-hot domain as further input of the head.
    reweighted: True if all domains have equal weights in the loss, False if all
      examples have.
  """
  errors.expect_one_of('domain_model', kind, KINDS)
  if kind != 'shared' or reweighted:
    expect_domains(model, 'domain_model or reweight_domains')
  if model.domains is not None:
    weighted = dataclasses.replace(model.domains, reweighted=reweighted)
    model = dataclasses.replace(model, domains=weighted)
  return KINDS[kind](model)


def expect_domains(model: split_model.SplitModel, method: str) -> None:
  """Raises `ValueError` if a model has no domains."""
  errors.expect(
    model.domains is not None,
    'model',
    f'one whose examples have a domain, as {method} demands '
    '(add it with `pfl.with_domains`)',
    f'{model.name!r} without domains',
  )


def domain_copies(model: split_model.SplitModel) -> copies.Copies:
  """Makes a copy for each domain, named `domain_0`, `domain_1`, …."""
  return copies.Copies(
    model, tuple(f'domain_{m}' for m in range(model.domains.number))
  )


def multi_head(model: split_model.SplitModel) -> split_model.SplitModel:
  """Makes a model with a head for each domain.

  Args:
    model: A model with domains. Every head starts as a copy of its head.

  Returns:
    A model with head weights named `domain_m/layer/weight`. Each head has the
    regularizers of the model's head, so a loss in which all heads are trained
    has the sum of their penalties. Batch normalization in a head takes the
    statistics of its domain's examples.
  """
  heads = domain_copies(model)
  copied = model.weight_names(model.head_layers)
  initial = split_model.select(model.initial_weights, copied)

  def head(weights, features, mode=split_model.INFERENCE):
    """Runs all heads on all features and picks the outputs by domain."""

    def head_of(weights, domain, mode):
      is_member = tf.cast(tf.equal(features['domain'], domain), tf.float32)
      if mode.example_weights is not None:
        is_member *= mode.example_weights
      return model.head(
        weights, features['inputs'], mode._replace(example_weights=is_member)
      )

    outputs, statistics = heads.each(
      head_of, weights, range(len(heads.names)), mode
    )
    chosen = tf.gather(tf.stack(outputs, 1), features['domain'], batch_dims=1)
    return chosen, statistics

  weights = collections.OrderedDict(
    (name, value)
    for name, value in model.initial_weights.items()
    if name not in copied
  )
  weights.update(heads.join({n: initial for n in heads.names}))
  all_regularizers = {**model.regularizers, **heads.regularizers}
  return dataclasses.replace(
    model,
    name=f'{model.name}_by_domain',
    initial_weights=weights,
    layers={
      **{k: model.layers[k] for k in model.body_layers},
      **heads.layers(model.head_layers),
    },
    head_layers=tuple(heads.layers(model.head_layers)),
    statistics=(model.statistics | heads.statistics).intersection(weights),
    regularizers={
      name: regularizer
      for name, regularizer in all_regularizers.items()
      if name in weights
    },
    body=_body_and_domain(model),
    head=head,
    layer_outputs=None,
    units={},
  )


def all_head(model: split_model.SplitModel) -> split_model.SplitModel:
  """Makes a model that consists of a head only.

  Its body returns the inputs. `multi_head` then makes a whole model for each
  domain.
  """
  return dataclasses.replace(
    model,
    body=lambda unused_weights, x, mode=split_model.INFERENCE: (x, {}),
    head=model.forward,
    head_layers=tuple(model.layers),
    is_augmented=False,  # The head is augmented instead.
  )


def _body_and_domain(model):
  def body(weights, x, mode=split_model.INFERENCE):
    features, statistics = model.body(weights, x, mode)
    return collections.OrderedDict(
      inputs=features, domain=x['domain']
    ), statistics

  return body


class LinearHead(NamedTuple):
  """Names of the weights of a head that is one linear layer.

  Attributes:
    kernel: Name of the kernel `[features, outputs]`.
    bias: Name of the bias `[outputs]`, None if there is none.
  """

  kernel: str
  bias: Optional[str]


def linear_head(model: split_model.SplitModel) -> LinearHead:
  """Returns the names of a linear head's weights.

  The head must be one linear layer, from features `[batch, features]` to
  outputs `[batch, outputs]`.
  """
  names = model.weight_names(model.last_layers(None, 'this method'))
  ranks = [model.initial_weights[name].ndim for name in names]
  head = LinearHead(names[0], names[1] if len(names) == 2 else None)
  errors.expect(
    ranks in ([2], [2, 1]) and _is_linear(model, head),
    'model',
    'one whose head is a single dense layer without an activation that '
    'computes in float32',
    f'{model.name!r} with the head {", ".join(model.head_layers)}',
  )
  return head


def _is_linear(model, head):
  """Tests with random numbers if the head is linear in the features."""
  rng = np.random.default_rng(0)
  shape = model.initial_weights[head.kernel].shape
  dtype = model.initial_weights[head.kernel].dtype
  features, kernel = (
    rng.normal(size=size).astype(dtype) for size in ([3, shape[0]], shape)
  )
  weights, expected = {head.kernel: kernel}, features @ kernel
  if head.bias is not None:
    weights[head.bias] = rng.normal(size=shape[1]).astype(dtype)
    expected = expected + weights[head.bias]
  try:
    # A GPU multiplies in TensorFloat-32, which is not precise enough.
    with tf.device('CPU:0'):
      weights = tf.nest.map_structure(tf.constant, weights)
      outputs = model.head(weights, tf.constant(features))[0]
  except (ValueError, TypeError, tf.errors.OpError):
    return False  # The head takes other features.
  return outputs.shape == expected.shape and np.allclose(
    outputs, expected, rtol=1e-4, atol=1e-4
  )


def domain_as_input(model: split_model.SplitModel) -> split_model.SplitModel:
  """Makes a model whose head also takes the domain, one-hot.

  Args:
    model: A model with domains and a linear head.

  Returns:
    A model whose head has the further weight `domain_input/kernel`
    `[domains, outputs]`, which starts at 0.
  """
  head_weights = linear_head(model)
  kernel = model.initial_weights[head_weights.kernel]
  name = 'domain_input/kernel'

  def head(weights, features, mode=split_model.INFERENCE):
    outputs, statistics = model.head(weights, features['inputs'], mode)
    one_hot = tf.one_hot(
      features['domain'], model.domains.number, dtype=outputs.dtype
    )
    return outputs + tf.matmul(one_hot, weights[name]), statistics

  return dataclasses.replace(
    model,
    name=f'{model.name}_of_domain',
    initial_weights=collections.OrderedDict(
      [
        *model.initial_weights.items(),
        (name, np.zeros([model.domains.number, kernel.shape[1]], kernel.dtype)),
      ]
    ),
    layers={**model.layers, 'domain_input': (name,)},
    head_layers=(*model.head_layers, 'domain_input'),
    body=_body_and_domain(model),
    head=head,
    layer_outputs=None,
    units={},
  )


# How a model uses domains.
KINDS = {
  'shared': lambda model: model,
  'multi_head': multi_head,
  'input': domain_as_input,
}


def projected(
  model: split_model.SplitModel, dimension: int, seed: int = 0
) -> split_model.SplitModel:
  """Inserts a linear layer before the head that projects the features.

  Args:
    model: A model with a linear head. A model that was already projected to
      this dimension is returned unchanged.
    dimension: Number of projected features, at least 1.
    seed: Seed of the new weights, non-negative.

  Returns:
    A model whose body ends with the layer `projection` and whose head takes its
    outputs. Both kernels start from Glorot's uniform distribution, biases at 0.
  """
  if 'projection' in model.layers:
    shape = model.initial_weights[model.layers['projection'][0]].shape
    errors.expect(
      model.name.endswith('_projected') and shape[-1] == dimension,
      'model',
      f'one without a layer `projection`, or projected to {dimension} features',
      f'{model.name!r} with one of shape {list(shape)}',
    )
    return model
  head = linear_head(model)
  kernel = model.initial_weights[head.kernel]
  rng = np.random.default_rng([seed, *b'projection'])

  def glorot(num_inputs, num_outputs):
    limit = np.sqrt(6 / (num_inputs + num_outputs))
    size = [num_inputs, num_outputs]
    return rng.uniform(-limit, limit, size).astype(kernel.dtype)

  names = ('projection/kernel', 'projection/bias')

  def body(weights, x, mode=split_model.INFERENCE):
    features, statistics = model.body(weights, x, mode)
    kernel, bias = (weights[name] for name in names)
    return tf.matmul(features, kernel) + bias, statistics

  def new_head(weights, features, mode=split_model.INFERENCE):
    del mode
    outputs = tf.matmul(features, weights[head.kernel])
    return outputs if head.bias is None else outputs + weights[head.bias], {}

  initial = collections.OrderedDict(
    (name, value)
    for name, value in model.initial_weights.items()
    if name not in head
  )
  initial[names[0]] = glorot(kernel.shape[0], dimension)
  initial[names[1]] = np.zeros([dimension], kernel.dtype)
  initial[head.kernel] = glorot(dimension, kernel.shape[1])
  if head.bias is not None:
    initial[head.bias] = np.zeros([kernel.shape[1]], kernel.dtype)
  return dataclasses.replace(
    model,
    name=f'{model.name}_projected',
    initial_weights=initial,
    layers={
      **{k: v for k, v in model.layers.items() if k not in model.head_layers},
      'projection': names,
      **{k: model.layers[k] for k in model.head_layers},
    },
    body=body,
    head=new_head,
    layer_outputs=None,
    units={},
  )
