"""Batch normalization whose moving statistics stay on the clients.

Normally, every method trains and averages a network's moving statistics with
its global weights. Here a client keeps the statistics (SiloBN) or all weights
of batch normalization, which are neither broadcast nor sent. A client that
never took part uses the statistics of its own examples. If clients also keep
scales and offsets, it uses their initial values (`fed_bn` trains them). The
model given to a client that contributes no data has the initial values of all
kept weights. Clients that forget their state start each round with the initial
statistics.

References:
  Andreux, du Terrail, Beguier, Tramel: Siloed Federated Learning for
  Multi-Centric Histopathology Datasets, DART 2020 (SiloBN).
  Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via
  Local Batch Normalization, ICLR 2021.
"""

import collections
import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.core import client_work, example_tensors
from tff_pfl.models import split_model

_WEIGHTS, _STATISTICS = 'weights', 'statistics'


def kept_by_clients(
  work: client_work.ClientWork, statistics: str, method: str
) -> client_work.ClientWork:
  """The work of clients that keep weights of batch normalization.

  Args:
    statistics: See `ProcessOptions.statistics`. 'global' changes nothing.
  """
  if statistics == 'global':
    return work
  model = work.model
  moving = [
    name for name in work.initial_global if name.endswith(split_model.MOVING)
  ]
  errors.expect(
    all(
      name in model.statistics
      and work.initial_global[name].shape == model.initial_weights[name].shape
      for name in moving
    ),
    'statistics',
    f'global for {method}, whose clients hold several models or parts of units',
    statistics,
  )
  if not moving:  # There are no statistics, or clients already keep them.
    return work
  names = moving
  if statistics == 'local_all':
    layers = {name.rpartition('/')[0] for name in moving}
    names = [
      name for name in work.initial_global if name.rpartition('/')[0] in layers
    ]
    is_known_to_server = any(
      isinstance(value, Mapping) and set(names) & set(value)
      for value in work.initial_algorithm.values()
    )
    errors.expect(
      work.keeps_local and not is_known_to_server,
      'statistics',
      f'local or global for {method}, whose clients keep no scales and offsets',
      statistics,
    )
  return _keeping(work, names, method, statistics)


def _both(weights, statistics):
  """A client's state: the method's own and the statistics."""
  return collections.OrderedDict(
    [(_WEIGHTS, weights), (_STATISTICS, statistics)]
  )


def _keeping(inner, names, method, option):
  """Changes a method so that clients keep some of its global weights."""
  initial = split_model.select(inner.initial_global, names)

  def with_statistics(broadcast, statistics):
    weights = {**broadcast.global_weights, **statistics}
    return broadcast._replace(
      global_weights=split_model.select(weights, inner.initial_global)
    )

  def without(client, statistics):
    """The client as the method sees it, as if all weights were received."""
    return dataclasses.replace(
      client,
      broadcast=with_statistics(client.broadcast, statistics),
      local=client.local[_WEIGHTS],
    )

  def keeping(exchange):
    """The exchange, after which a client keeps the statistics for the next."""
    is_last = exchange is inner.exchanges[-1]

    def train(client):
      is_first = exchange is inner.exchanges[0]
      statistics = (client.local if is_first else client.cache)[_STATISTICS]
      cache = () if is_first else client.cache[_WEIGHTS]
      result = exchange.client(
        dataclasses.replace(without(client, statistics), cache=cache)
      )
      update = collections.OrderedDict(result.update)
      errors.expect(
        not is_last or set(names) <= set(update),
        'statistics',
        f'global for {method}, which does not average all of them',
        option,
      )
      statistics = collections.OrderedDict(
        (name, value - update.pop(name) if name in update else value)
        for name, value in statistics.items()
      )
      return result._replace(
        update=update,
        local=_both(result.local, statistics),
        cache=_both(result.cache, statistics),
      )

    receives = [name for name in exchange.receives if name not in names]
    return dataclasses.replace(exchange, client=train, receives=receives)

  def personal_weights(broadcast, local):
    return inner.personal_weights(
      with_statistics(broadcast, local[_STATISTICS]), local[_WEIGHTS]
    )

  def fit_new_client(client, num_epochs):
    def with_those_of_examples(local):
      weights = personal_weights(client.broadcast, local)
      measured = statistics_of(
        inner.model, weights, client.examples, client.seed
      )
      statistics = {**local[_STATISTICS], **measured}
      return _both(local[_WEIGHTS], split_model.select(statistics, names))

    local = with_those_of_examples(client.local)
    if inner.fit_new_client is None:
      return local
    fitted = inner.fit_new_client(
      without(dataclasses.replace(client, local=local), local[_STATISTICS]),
      num_epochs,
    )
    # The fitted weights may come before batch normalization in the network.
    return with_those_of_examples(_both(fitted, local[_STATISTICS]))

  return dataclasses.replace(
    inner,
    exchanges=[keeping(exchange) for exchange in inner.exchanges],
    exchanges_when_forgetting=None,
    initial_global=split_model.select(
      inner.initial_global, [n for n in inner.initial_global if n not in names]
    ),
    initial_local=_both(inner.initial_local, initial),
    personal_weights=personal_weights,
    # The initial statistics do not suit any client's data.
    global_model=None,
    fit_new_client=fit_new_client,
    trains_new_clients=(
      inner.trains_new_clients and inner.fit_new_client is not None
    ),
  )


def statistics_of(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  seed: tf.Tensor,
) -> split_model.Weights:
  """The means and variances of all examples as one batch, by name.

  A forward pass in training mode turns a statistic s into m s + (1 - m) b, for
  the layer's momentum m and the batch's statistic b. Passes from s = 0 and
  s = max(|(1 - m) b|, 1) give both m and b. If there are no examples, the
  result is the statistics in `weights`.
  """
  mode = split_model.Mode(
    True,
    seed,
    tf.sequence_mask(examples.num_examples, examples.capacity, tf.float32),
  )

  def after_step(moving):
    return model.forward({**weights, **moving}, examples.x, mode)[1]

  # Leaves out the statistics of frozen layers, which no step changes.
  names = [name for name in after_step({}) if name.endswith(split_model.MOVING)]

  zeros = after_step({name: tf.zeros_like(weights[name]) for name in names})
  # At least as large as (1 - m) b, or rounding would lose m.
  starts = {name: tf.maximum(tf.abs(zeros[name]), 1) for name in names}
  moved = after_step(starts)
  has_examples = examples.num_examples > 0

  def statistic(name):
    # 1 - m, or 0 if unchanged.
    share = 1 - (moved[name] - zeros[name]) / starts[name]
    return tf.where(
      tf.logical_and(has_examples, share > 0),
      tf.math.divide_no_nan(zeros[name], share),
      weights[name],
    )

  return {name: statistic(name) for name in names}
