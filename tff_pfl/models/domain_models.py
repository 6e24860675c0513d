"""Models of examples that have a domain, made of any model.

    with_domains     the model itself; the domain is there for the score
    of_domains       one of the next, by its name, with a loss for all domains
    multi_head       a shared body and, for each domain, its own head
    all_head         a model without a body, for separate models by multi_head
    domain_as_input  the domain, one-hot, as further features of a linear head
    projected        a linear layer between the body and a linear head

The body's features are then `OrderedDict(inputs=features, domain=domain)`, so
that a head can be trained on a frozen body as everywhere.
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
  """Returns the model for data with domains, which it does not look at.

  Args:
    model: Takes examples `{x, y}`.
    data: The domains, or a data set that may have some. Scores are then told by
      domain.

  Returns:
    The same model for examples `{x, y, domain}`, whose `x` is
    `OrderedDict(inputs=..., domain=...)`; its `layer_outputs` takes the inputs.
    The model itself for a data set without domains.

  Raises:
    ValueError: The model has domains already.
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


def of_domains(
  model: split_model.SplitModel, kind: str, *, reweighted: bool = False
) -> split_model.SplitModel:
  """The model that uses the domains in one of the ways in `KINDS`.

  Args:
    model: With domains, unless nothing is asked for.
    kind: 'shared' is the model itself, 'multi_head' has a head for each domain,
      'input' takes the domain, one-hot, beside the features of the last hidden
      layer.
    reweighted: Whether all domains count the same in the loss.
  """
  errors.expect_one_of('domain_model', kind, KINDS)
  if kind != 'shared' or reweighted:
    expect_domains(model, 'domain_model or reweight_domains')
  if reweighted:
    of_data = dataclasses.replace(model.domains, reweighted=True)
    model = dataclasses.replace(model, domains=of_data)
  return KINDS[kind](model)


def expect_domains(model: split_model.SplitModel, method: str) -> None:
  """Raises `ValueError` if a model's examples have no domain."""
  errors.expect(
    model.domains is not None,
    'model',
    f'one whose examples have a domain, as {method} demands (a data set with '
    'domains, such as rotated_digits, gives its models one; '
    '`domain_models.with_domains` does for a model of your own)',
    f'{model.name!r} without',
  )


def domain_copies(model: split_model.SplitModel) -> copies.Copies:
  """Names for a copy of weights for each domain: `domain_0` and so on."""
  return copies.Copies(
    model, tuple(f'domain_{m}' for m in range(model.domains.number))
  )


def multi_head(model: split_model.SplitModel) -> split_model.SplitModel:
  """A model with a head for each domain.

  Args:
    model: With domains. Every head starts as its head.

  Returns:
    A model with the weights of the body and `domain_m/layer/weight` of heads.
  """
  of_domains = domain_copies(model)
  copied = model.weight_names(model.head_layers)
  initial = split_model.select(model.initial_weights, copied)

  def head(weights, features, mode=split_model.INFERENCE):
    """All heads on all features; each example takes its domain's outputs."""
    inputs = [features['inputs']] * len(of_domains.names)
    outputs, statistics = of_domains.each(model.head, weights, inputs, mode)
    chosen = tf.gather(tf.stack(outputs, 1), features['domain'], batch_dims=1)
    return chosen, statistics

  weights = collections.OrderedDict(
    (name, value)
    for name, value in model.initial_weights.items()
    if name not in copied
  )
  weights.update(of_domains.join({n: initial for n in of_domains.names}))
  return dataclasses.replace(
    model,
    name=f'{model.name}_by_domain',
    initial_weights=weights,
    layers={
      **{k: model.layers[k] for k in model.body_layers},
      **of_domains.layers(model.head_layers),
    },
    head_layers=tuple(of_domains.layers(model.head_layers)),
    statistics=(model.statistics | of_domains.statistics).intersection(weights),
    regularizers={**model.regularizers, **of_domains.regularizers},
    body=_body_and_domain(model),
    head=head,
    layer_outputs=None,
    elements={},
  )


def all_head(model: split_model.SplitModel) -> split_model.SplitModel:
  """The model with all of it as head; its body gives the inputs.

  `multi_head` of it has a whole model for each domain.
  """
  return dataclasses.replace(
    model,
    body=lambda unused_weights, x, mode=split_model.INFERENCE: (x, {}),
    head=model.forward,
    head_layers=tuple(model.layers),
    is_augmented=False,  # Its head is.
  )


def _body_and_domain(model):
  def body(weights, x, mode=split_model.INFERENCE):
    features, statistics = model.body(weights, x, mode)
    return collections.OrderedDict(
      inputs=features, domain=x['domain']
    ), statistics

  return body


class LinearHead(NamedTuple):
  """The weights of a head that is one linear layer.

  Attributes:
    kernel: Its name; of shape `[features, outputs]`.
    bias: Its name, of shape `[outputs]`; None without one.
  """

  kernel: str
  bias: Optional[str]


def linear_head(model: split_model.SplitModel) -> LinearHead:
  """The weights of a model's head.

  Raises:
    ValueError: If the head is not one linear layer, from features
      `[batch, features]` to outputs `[batch, outputs]`.
  """
  names = model.weight_names(model.head_layers)
  ranks = [model.initial_weights[name].ndim for name in names]
  head = LinearHead(names[0], names[1] if len(names) == 2 else None)
  errors.expect(
    ranks in ([2], [2, 1]) and _is_linear(model, head),
    'model',
    'one whose head is a single dense layer without an activation (give '
    '`head_layers` the last layer, and a loss of logits)',
    f'{model.name!r} with the head {", ".join(model.head_layers)}',
  )
  return head


def _is_linear(model, head):
  """Whether the head is the layer that its weights look like: it is tried."""
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
    # A GPU multiplies in TensorFloat-32, which is not close enough.
    with tf.device('CPU:0'):
      weights = tf.nest.map_structure(tf.constant, weights)
      outputs = model.head(weights, tf.constant(features))[0]
  except (ValueError, TypeError, tf.errors.OpError):
    return False  # It takes other features.
  return outputs.shape == expected.shape and np.allclose(
    outputs, expected, rtol=1e-4, atol=1e-4
  )


def domain_as_input(model: split_model.SplitModel) -> split_model.SplitModel:
  """The domain, one-hot, beside the features of the last hidden layer.

  Args:
    model: With domains and a linear head. The domains' rows of the kernel, the
      weight `domain_input/kernel` `[domains, outputs]`, start at 0.
  """
  head_weights = linear_head(model)
  kernel = model.initial_weights[head_weights.kernel]
  name = 'domain_input/kernel'

  def head(weights, features, mode=split_model.INFERENCE):
    outputs, statistics = model.head(weights, features['inputs'], mode)
    of_domain = tf.one_hot(
      features['domain'], model.domains.number, dtype=outputs.dtype
    )
    return outputs + tf.matmul(of_domain, weights[name]), statistics

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
    elements={},
  )


# What a model may make of domains.
KINDS = {
  'shared': lambda model: model,
  'multi_head': multi_head,
  'input': domain_as_input,
}


def projected(
  model: split_model.SplitModel, dimension: int, seed: int = 0
) -> split_model.SplitModel:
  """A linear layer that brings the features down to fewer numbers.

  Args:
    model: With a linear head. One that was projected to as many features is
      returned as it is.
    dimension: Number of the new features, at least 1.
    seed: Draws the new weights; non-negative.

  Returns:
    A model whose body ends with the layer `projection` and whose head takes its
    outputs. Both start from Glorot's uniform distribution, biases at 0.
  """
  errors.expect_int('projection_dim', dimension, 1)
  if 'projection' in model.layers:
    found = model.initial_weights[model.layers['projection'][0]].shape
    errors.expect(
      model.name.endswith('_projected') and found[-1] == dimension,
      'model',
      'one without a layer `projection`, or one that was projected to '
      f'{dimension} features',
      f'{model.name!r} with a layer `projection` of shape {list(found)}',
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
    elements={},
  )
