"""What clients and the server compute in an exchange.

These are the parts that `federated_round` puts together: a client's work with
its weight, its acceptance and what it keeps; the server's step; a round's
metrics.
"""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import (
  aggregators,
  client_work,
  example_tensors,
  in_place,
  objectives,
  private_mean,
  training_options,
)
from tff_pfl.core import client as client_lib
from tff_pfl.core import options as options_lib
from tff_pfl.models import domains, split_model


def build_clients(work, options, types, algorithm_type):
  """Each exchange's `(<broadcast, C, E, ...> -> output)`.

  After the first exchange a client also takes the server's update, which is
  the part of its state that it sends, and the client's own `cache`. Of the
  output, `sent` and `sums` leave the client.

  Args:
    types: The types of the first three arguments.
    algorithm_type: The type of the method's server state, for the update.
  """
  frozen = _frozen_names(work)
  clients = []
  for exchange in work.exchanges:
    errors.expect(
      exchange.server is None
      or not frozen
      or not isinstance(options.aggregator, private_mean.PRIVATE_MEANS),
      'aggregator',
      'one without noise, which would move the frozen weights of the model',
      type(options.aggregator).__name__,
    )
    parameters = list(types)
    if clients:
      weights = types.broadcast.global_weights
      server_update = collections.OrderedDict(
        global_weights=collections.OrderedDict(
          (name, weights[name]) for name in exchange.receives
        ),
        algorithm=algorithm_type,
      )
      parameters += [
        tff.to_type(server_update),
        clients[-1].type_signature.result.cache,
      ]
    function = _client_function(work, exchange, options, frozen)
    clients.append(tff.tensorflow.computation(function, tuple(parameters)))
  return clients


def _frozen_names(work):
  """The global weights that no training changes."""
  model = work.model
  if all(name.endswith(split_model.MOVING) for name in model.statistics):
    return ()
  x, _ = domains.join(example_tensors.batched_spec(model.element_spec))
  moving = set()

  @tf.function(autograph=False)
  def step(x):
    number = tf.shape(tf.nest.flatten(x)[0])[0]
    mode = split_model.Mode(True, tf.constant([0, 0]), tf.ones([number]))
    moving.update(model.forward(model.initial_weights, x, mode)[1])

  step.get_concrete_function(x)
  # The names of several models have that of the model before them.
  frozen = tuple(f'/{name}' for name in model.statistics - moving)
  return tuple(n for n in work.initial_global if f'/{n}'.endswith(frozen))


def _client_function(work, exchange, options, frozen):
  """What a client does in an exchange, as a function of tensors."""
  # Compiled as a whole, so that what follows the training is one pass over the
  # weights, too; large ones are trained by TensorFlow's own kernels.
  model, is_last = work.model, exchange is work.exchanges[-1]
  is_compiled = model.uses_xla and not in_place.suits(
    model, model.initial_weights
  )

  @tf.function(jit_compile=is_compiled, autograph=False)
  def work_at_client(
    broadcast, client_state, examples, server_update=None, cache=None
  ):
    if server_update is not None:
      broadcast = broadcast._replace(
        global_weights=split_model.select(
          {**broadcast.global_weights, **server_update['global_weights']},
          broadcast.global_weights,
        ),
        algorithm=server_update['algorithm'],
      )
    examples = options.attack.on_examples(
      examples, client_state.client_index, model
    )
    client = client_lib.Client(
      model,
      broadcast,
      work.local_of(client_state),
      examples,
      broadcast.seed_of(client_state, exchange.seed_purpose),
      () if cache is None else cache['of_method'],
      options.training,
      options.training.rate_factor(broadcast.round_number),
    )
    with in_place.not_if(is_compiled):
      result = exchange.client(client)
    is_finite = client_work.all_finite(
      (result.update, result.report, result.local, result.cache)
    )
    if cache is not None:
      is_finite = tf.logical_and(is_finite, cache['is_finite'])
    accepted = tf.logical_and(is_finite, examples.num_examples > 0)
    report, weight = _weigh(work, exchange, options, result, examples, accepted)
    sent = collections.OrderedDict(result.update)
    if exchange.server is None:
      for name in frozen:
        sent.pop(name, None)
    else:
      sent = collections.OrderedDict(
        (name, value)
        for name, value in (('update', sent), ('report', report))
        if tf.nest.flatten(value)
      )
    metrics = result.metrics or objectives.zero_metrics(model)
    sent, metrics = _where(accepted, (sent, metrics))
    sent = options.attack.on_sent(sent, client_state.client_index)
    # Over the accepted clients; summed over the cohort.
    sums = collections.OrderedDict(
      metrics=metrics,
      weight=weight,
      num_examples=tf.where(accepted, examples.num_examples, 0),
      num_clients=tf.cast(accepted, tf.int32),
      num_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32),
    )
    if options.training_metrics == 'none':
      sums = tf.nest.map_structure(tf.zeros_like, sums)
      sums.update(weight=tf.constant(1.0), num_clients=tf.constant(1))
    if is_last:
      client_state = client_state._replace(
        num_rounds=client_state.num_rounds + tf.cast(accepted, tf.int32)
      )
      if work.keeps_local:
        client_state = client_state._replace(
          local=_where(accepted, result.local, client_state.local)
        )
    cache = collections.OrderedDict(is_finite=is_finite, of_method=result.cache)
    return collections.OrderedDict(
      sent=sent,
      sums=sums,
      cache=() if is_last else cache,
      client_state=client_state if is_last else (),
    )

  # TFF takes no variable number of parameters, but one structure.
  return lambda arguments: work_at_client(*arguments)


def _where(condition, values, others=None):
  """Value by value of a structure; zeros if there are no others."""
  if others is None:
    others = tf.nest.map_structure(tf.zeros_like, values)
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), values, others
  )


def _weigh(work, exchange, options, result, examples, accepted):
  """A client's report, as it is averaged, and its weight in the mean."""
  weighting = (
    exchange.weighting or options.client_weighting or work.default_weighting
  )
  known = options_lib.CLIENT_WEIGHTINGS
  errors.expect_one_of('weighting', weighting, known)
  is_uniform = weighting == 'uniform'
  num_examples = tf.cast(examples.num_examples, tf.float32)
  report = result.report
  if work.report_scale is not None:
    scale = work.report_scale
    if aggregators.is_weighted(options.aggregator) and not is_uniform:
      scale = tf.maximum(num_examples, 1.0)
    report = tf.nest.map_structure(
      lambda value: value / tf.cast(scale, value.dtype), report
    )
  return report, tf.where(accepted, 1.0 if is_uniform else num_examples, 0.0)


def build_server_update(exchange, state_type):
  """`(S -> update)`: the server's message in an exchange after the first."""

  @tff.tensorflow.computation(state_type)
  def server_update(state):
    return collections.OrderedDict(
      global_weights=split_model.select(
        state.global_weights, exchange.receives
      ),
      algorithm=state.algorithm,
    )

  return server_update


def build_server(work, number, options, state_type, client, aggregation):
  """`(<S, mean, aggregator state, sums> -> <S, norm of the update>)`."""
  exchange = work.exchanges[number]
  is_last = number == len(work.exchanges) - 1
  aggregated = aggregation.next.type_signature.result

  @tff.tensorflow.computation(
    state_type,
    aggregated.result.member,
    aggregated.state.member,
    client.type_signature.result.sums,
  )
  def server(state, mean, aggregator_state, sums):
    weights, update, algorithm = state.global_weights, mean, state.algorithm
    if exchange.server is not None:
      least_share = aggregators.least_share(
        options.aggregator, sums['num_clients']
      )
      update, algorithm = exchange.server(
        state,
        mean.get('update', {}),
        mean.get('report', ()),
        client_work.Cohort(sums['num_clients'], least_share),
      )
    optimizer_state, trained, gradient = state.server_optimizer, {}, {}
    if any(name in update for name in work.trained_names):
      gradient = split_model.select(update, work.trained_names)
      optimizer_state, trained = _server_step(
        options,
        state,
        split_model.select(weights, work.trained_names),
        gradient,
      )
    stepped = collections.OrderedDict(
      (n, trained[n] if n in trained else old - update.get(n, 0))
      for n, old in weights.items()
    )
    for name in stepped:
      if name.endswith('/moving_variance'):
        # The noise of a private mean may be larger.
        stepped[name] = tf.maximum(stepped[name], 0)
    # A cohort without a single accepted client leaves the model as it is.
    has_update = sums['weight'] > 0

    def keep(new, old):
      return tf.where(has_update, tf.cast(new, old.dtype), old)

    algorithm = tf.nest.map_structure(keep, algorithm, state.algorithm)
    if is_last:
      for name in work.transient:
        algorithm[name] = tf.nest.map_structure(tf.zeros_like, algorithm[name])
    states = list(state.aggregator)
    states[number] = aggregator_state
    new_state = state._replace(
      round_number=state.round_number + int(is_last),
      global_weights=tf.nest.map_structure(keep, stepped, weights),
      aggregator=tuple(states),
      server_optimizer=tf.nest.map_structure(
        keep, optimizer_state, state.server_optimizer
      ),
      algorithm=algorithm,
    )
    norm = tf.linalg.global_norm(list(gradient.values())) if gradient else 0.0
    # What an aggregator gives for no update at all may be noise or 0 / 0.
    return new_state, tf.where(has_update, norm, 0.0)

  return server


def _server_step(options, state, weights, gradient):
  """The server optimizer's new state, and the new weights."""
  optimizer, schedule = options.server_optimizer, options.server_schedule
  optimizer_state = state.server_optimizer
  if schedule is not None:
    factor = tf.cast(schedule(state.round_number), tf.float32)
    optimizer_state = training_options.scaled(
      optimizer, optimizer_state, factor
    )
  new_state, weights = optimizer.next(optimizer_state, weights, gradient)
  if schedule is not None:
    hparams = optimizer.get_hparams(state.server_optimizer)
    new_state = optimizer.set_hparams(new_state, hparams)
  return new_state, weights


def build_metrics(work, state_type, sums_type, aggregations):
  """`(<S, sums, norm of the update, measurements...> -> metrics)`."""

  @tff.tensorflow.computation(
    state_type,
    sums_type,
    np.float32,
    tuple(
      aggregation.next.type_signature.result.measurements.member
      for aggregation in aggregations
    ),
  )
  def metrics_of(state, sums, update_norm, measurements):
    number = objectives.number_counted(sums['metrics'])
    metrics = tf.nest.map_structure(
      # Nothing trained on, no loss: a zero would look like success.
      lambda mean: tf.where(number > 0, mean, np.nan),
      objectives.means(sums['metrics']),
    )
    metrics['update_norm'] = update_norm
    metrics['examples'] = sums['num_examples']
    metrics['clients'] = sums['num_clients']
    metrics['non_finite_clients'] = sums['num_non_finite']
    if work.server_metrics is not None:
      metrics.update(work.server_metrics(state.algorithm))
    if tf.nest.flatten(measurements):
      metrics['aggregator'] = measurements[0]
      if len(measurements) > 1:
        metrics['aggregator'] = collections.OrderedDict(
          (f'exchange_{number}', measured)
          for number, measured in enumerate(measurements)
        )
    return metrics

  return metrics_of
