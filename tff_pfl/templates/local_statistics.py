"""Batch normalization whose moving statistics stay on the clients.

Every method trains and averages a network's moving statistics with its global
weights. Here a client keeps them instead (SiloBN), or all that belongs to batch
normalization: they are neither broadcast nor sent. A client that never took
part takes the statistics of its own examples; the model given to a client that
contributes no data has the initial ones.

References:
  Andreux, du Terrail, Beguier, Tramel: Siloed Federated Learning for
  Multi-Centric Histopathology Datasets, DART 2020 (SiloBN).
  Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via
  Local Batch Normalization, ICLR 2021.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.client import example_tensors
from tff_pfl.models import split_model
from tff_pfl.templates import client_work

_WEIGHTS, _STATISTICS = 'weights', 'statistics'
_MOVING = ('/moving_mean', '/moving_variance')


def kept_by_clients(
  work: client_work.ClientWork, statistics: str, method: str
) -> client_work.ClientWork:
  """The method with clients that keep what belongs to batch normalization.

  Args:
    statistics: One of `options.STATISTICS`.
    method: Its name, for errors.

  Raises:
    ValueError: If the network has no batch normalization, or the method has no
      one statistics of it to keep.
  """
  if statistics == 'global':
    return work
  model = work.model
  errors.expect(
    any(name.endswith(_MOVING) for name in model.initial_weights),
    'statistics',
    f'global for the model {model.name!r}, which has no batch normalization',
    statistics,
  )
  moving = [name for name in work.initial_global if name.endswith(_MOVING)]
  errors.expect(
    all(
      name in model.statistics
      and work.initial_global[name].shape == model.initial_weights[name].shape
      for name in moving
    ),
    'statistics',
    f'global for {method}, whose clients hold several models or divide the '
    'units of batch normalization',
    statistics,
  )
  if not moving:  # They stay on the clients anyway.
    return work
  names = moving
  if statistics == 'local_all':
    layers = {name.rpartition('/')[0] for name in moving}
    names = [
      name for name in work.initial_global if name.rpartition('/')[0] in layers
    ]
  return _Keeping(work, names, method).work()


class _Keeping:
  """The parts of a method, as those of one that keeps some global weights."""

  def __init__(
    self, work: client_work.ClientWork, names: Sequence[str], method: str
  ):
    self._inner = work
    self._names = names
    self._method = method
    self._initial = split_model.select(work.initial_global, names)

  def work(self) -> client_work.ClientWork:
    """The method."""
    inner = self._inner
    others = [n for n in inner.initial_global if n not in self._names]
    return dataclasses.replace(
      inner,
      exchanges=self._exchanges(inner.exchanges),
      exchanges_when_forgetting=None,
      initial_global=split_model.select(inner.initial_global, others),
      initial_local=collections.OrderedDict(
        [(_WEIGHTS, inner.initial_local), (_STATISTICS, self._initial)]
      ),
      personal_weights=lambda broadcast, local: inner.personal_weights(
        self._with(broadcast, local[_STATISTICS]), local[_WEIGHTS]
      ),
      global_model=inner.global_model
      and (
        lambda weights: inner.global_model(
          self._complete(weights, self._initial)
        )
      ),
      fit_new_client=self._fit_new_client,
    )

  def _complete(self, weights, statistics):
    return split_model.select(
      {**weights, **statistics}, self._inner.initial_global
    )

  def _with(self, broadcast, statistics):
    return broadcast._replace(
      global_weights=self._complete(broadcast.global_weights, statistics)
    )

  def _exchanges(self, exchanges):
    return [
      dataclasses.replace(
        exchange,
        client=self._client(exchange, is_last=exchange is exchanges[-1]),
        receives=[n for n in exchange.receives if n not in self._names],
      )
      for exchange in exchanges
    ]

  def _client(self, exchange, is_last):
    """The exchange's client; between exchanges it carries the statistics."""

    def client(broadcast, local, examples, seed, carried=None):
      statistics, inner_carried = local[_STATISTICS], []
      if carried is not None:
        statistics = carried[_STATISTICS]
        inner_carried = [carried[_WEIGHTS]]
      result = exchange.client(
        self._with(broadcast, statistics),
        local[_WEIGHTS],
        examples,
        seed,
        *inner_carried,
      )
      update = collections.OrderedDict(result.update)
      errors.expect(
        not is_last or set(self._names) <= set(update),
        'statistics',
        f'global for {self._method}, which does not average them as such',
        'local',
      )
      statistics = collections.OrderedDict(
        (name, value - update.pop(name) if name in update else value)
        for name, value in statistics.items()
      )
      return result._replace(
        update=update,
        local=collections.OrderedDict(
          [(_WEIGHTS, result.local), (_STATISTICS, statistics)]
        ),
        carried=collections.OrderedDict(
          [(_WEIGHTS, result.carried), (_STATISTICS, statistics)]
        ),
      )

    return client

  def _fit_new_client(self, broadcast, local, examples, seed, num_epochs):
    inner = self._inner
    complete = self._with(broadcast, local[_STATISTICS])
    statistics = statistics_of(
      inner.model,
      inner.personal_weights(complete, local[_WEIGHTS]),
      examples,
      seed,
    )
    statistics = {**local[_STATISTICS], **statistics}
    fitted = local[_WEIGHTS]
    if inner.fit_new_client is not None:
      fitted = inner.fit_new_client(
        self._with(broadcast, statistics), fitted, examples, seed, num_epochs
      )
    return collections.OrderedDict(
      [
        (_WEIGHTS, fitted),
        (_STATISTICS, split_model.select(statistics, self._names)),
      ]
    )


def statistics_of(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  seed: tf.Tensor,
) -> split_model.Weights:
  """The means and variances of the examples, all in one batch, by their names.

  A step in training mode gives m * old + (1 - m) * batch's, with a momentum m
  that the layer knows; two steps, from 0 and from 1, tell m and the batch's.
  Without examples the weights' own are returned.
  """
  names = [n for n in model.statistics if n.endswith(_MOVING)]
  mode = split_model.Mode(
    True,
    seed,
    tf.sequence_mask(examples.num_examples, examples.capacity, tf.float32),
  )

  def after_step(start):
    moving = {name: start(weights[name]) for name in names}
    return model.forward({**weights, **moving}, examples.x, mode)[1]

  zeros, ones = after_step(tf.zeros_like), after_step(tf.ones_like)
  has_examples = examples.num_examples > 0

  def of_examples(name):
    share = 1 - (ones[name] - zeros[name])  # 1 - m; 0 for those that stay.
    return tf.where(
      tf.logical_and(has_examples, share > 0),
      tf.math.divide_no_nan(zeros[name], share),
      weights[name],
    )

  return {name: of_examples(name) for name in names}
