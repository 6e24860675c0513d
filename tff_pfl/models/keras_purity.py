"""Calls of Keras layers as pure functions of their weights.

Keras's `StatelessScope` gives a layer's variables the caller's values. A pure
call replaces three more things, for its thread only:

* Random numbers come from the caller's seed, the same with and without XLA.
* The moments of batch normalization leave out padding.
* Eager tensors become constants of graphs.

A layer that still assigns or draws by itself raises an error that names it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import re
import threading

import keras
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import domains, keras_graph, randomness, split_model
from tff_pfl.system import graph_defs
from tff_pfl.system.private_api import EagerTensorBase, keras_random

_NORMALIZATION = keras.layers.BatchNormalization
_DROPOUT = (
  keras.layers.Dropout,
  keras.layers.SpatialDropout1D,
  keras.layers.SpatialDropout2D,
  keras.layers.SpatialDropout3D,
)
# Prefixes of operations that are not deterministic.
_IMPURE = (
  'Random',
  'Truncated',
  'Parameterized',
  'Multinomial',
  'PyFunc',
  'Eager',
)
# Types of operations that do not change values.
_KEEPING = (
  'Cast',
  'ExpandDims',
  'Identity',
  'Reshape',
  'SelectV2',
  'Squeeze',
  'StopGradient',
  'Transpose',
)


class _Call(threading.local):
  """A thread's pure call, in which parts of Keras and TensorFlow are replaced.

  Attributes:
    mode: The call's mode, None outside of pure calls.
    generators: Place of each of the model's seed generators, by its id.
    num_draws: Number of draws in this call, by place.
    takes_tensors: True if tensors that layers and losses hold become constants.
  """

  mode = None
  generators = None
  num_draws = None
  takes_tensors = False


_CALL = _Call()


def check_layers(graph, variables):
  """Raises `ValueError` if a layer cannot be made pure."""
  for name, module in keras_graph.layers_within(graph):
    reason = _reason_against(module, graph.layers[name])
    if reason is not None:
      keras_graph.refuse(name, graph.layers[name], reason)
  for name, variable in variables.items():
    if variable.constraint is not None:
      layer = name.rpartition('/')[0]
      while layer not in graph.layers:
        layer = layer.rpartition('/')[0]
      reason = 'has a constraint, which acts outside of its call'
      keras_graph.refuse(layer, graph.layers[layer], reason)


def _reason_against(module, layer):
  """Returns why a module of a layer cannot be made pure, None if it can."""
  if getattr(module, 'stateful', False):
    return 'keeps its state between batches (stateful=True)'
  if module.quantization_mode is not None:
    return 'is quantized'
  if isinstance(module, _DROPOUT) and module.rate == 1:
    return 'drops all'
  if getattr(module, 'activity_regularizer', None) is not None:
    return 'has an activity regularizer'
  if isinstance(module, _NORMALIZATION) and isinstance(
    layer, keras.layers.TimeDistributed
  ):
    return 'normalizes over steps (use it without TimeDistributed)'
  return None


def _seed(seed):
  """Returns a draw's seed from its generator's place and earlier draws."""
  mode = _CALL.mode
  if not mode.training:
    # Only for a branch of the graph that is not taken.
    return tf.zeros([2], tf.int32)
  errors.expect(
    mode.seed is not None,
    'mode.seed',
    'given when a model has dropout or other random layers',
    None,
  )
  place = _CALL.generators.get(id(seed))
  if place is None:
    raise ValueError(
      'It draws random numbers without its own keras.random.SeedGenerator.'
    )
  number = _CALL.num_draws[place]
  _CALL.num_draws[place] += 1
  return randomness.fold_in(mode.seed, place, *([number] if number else []))


def _dropout(inputs, rate, noise_shape=None, seed=None):
  if rate == 0:
    return inputs
  shape = tf.shape(inputs)
  if noise_shape is not None:
    shape = [
      shape[axis] if size is None else size
      for axis, size in enumerate(noise_shape)
    ]
  keep = randomness.keep_mask(_seed(seed), shape, rate)
  return tf.where(keep, inputs / (1 - rate), tf.zeros_like(inputs))


def _uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
  drawn = randomness.uniform(_seed(seed), shape)
  return tf.cast(minval + (maxval - minval) * drawn, dtype or tf.float32)


def _randint(shape, minval, maxval, dtype='int32', seed=None):
  drawn = randomness.uniform_integers(_seed(seed), shape, maxval - minval)
  return tf.cast(drawn + minval, dtype)


def _normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
  drawn = randomness.uniform(_seed(seed), shape)
  return tf.cast(mean + stddev * tf.math.ndtri(drawn), dtype or tf.float32)


def _truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
  drawn = randomness.uniform(_seed(seed), shape)
  # Within two standard deviations.
  drawn = tf.math.ndtri(0.02275013 + 0.95449974 * drawn)
  return tf.cast(mean + stddev * drawn, dtype or tf.float32)


def _no_such_draw(*unused_args, **unused_kwargs):
  raise ValueError('It draws from a distribution that is not supported.')


_DRAWS = {
  'dropout': _dropout,
  'uniform': _uniform,
  'randint': _randint,
  'normal': _normal,
  'truncated_normal': _truncated_normal,
  **dict.fromkeys(
    ('categorical', 'gamma', 'beta', 'binomial', 'shuffle'), _no_such_draw
  ),
}


def _moments(layer, inputs, mask):
  """Computes batch normalization's moments, without padding."""
  example_weights = _CALL.mode.example_weights
  if example_weights is None:
    weights = tf.ones_like(inputs[..., :1])
  else:
    shape = [-1] + [1] * (inputs.shape.rank - 1)
    weights = tf.reshape(tf.cast(example_weights, inputs.dtype), shape)
  if mask is not None:
    weights *= tf.cast(mask, inputs.dtype)[..., tf.newaxis]
  axes = layer._reduction_axes  # pylint: disable=protected-access
  return tf.nn.weighted_moments(inputs, axes, weights)


def _standardized(layer, inputs):
  """Like `Normalization.call`, with its weights instead of kept tensors."""
  mean, variance = (
    keras.ops.cast(
      keras.ops.reshape(weight, layer._broadcast_shape), layer.compute_dtype
    )
    for weight in (layer.adapt_mean, layer.adapt_variance)
  )
  scale = keras.ops.maximum(keras.ops.sqrt(variance), keras.backend.epsilon())
  inputs = keras.ops.cast(inputs, layer.compute_dtype)
  return inputs * scale + mean if layer.invert else (inputs - mean) / scale


def _as_constant(tensor, dtype=None, name=None):
  return tf.constant(tensor.numpy(), dtype or tensor.dtype, name=name)


def _is_value_for_a_graph(tensor):
  dtype = tensor.dtype
  is_value = dtype.is_floating or dtype.is_integer or dtype.is_bool
  return is_value and not tf.executing_eagerly()


def _replace(owner, name, replacement, applies):
  """Replaces a function in the calls to which the replacement applies."""
  original = getattr(owner, name)

  @functools.wraps(original)
  def dispatch(*args, **kwargs):
    chosen = replacement if applies(*args) else original
    return chosen(*args, **kwargs)

  setattr(owner, name, dispatch)


def _is_in_a_call(*unused_args):
  return _CALL.mode is not None


# Once for all threads. Outside of pure calls the originals are called.
for _name, _draw in _DRAWS.items():
  _replace(keras_random, _name, _draw, _is_in_a_call)
_replace(_NORMALIZATION, '_moments', _moments, _is_in_a_call)
_replace(
  keras.layers.Normalization,
  'call',
  _standardized,
  lambda layer, *_: _CALL.mode is not None and layer.input_mean is None,
)
_replace(
  EagerTensorBase,
  '__tf_tensor__',
  _as_constant,
  lambda tensor, *_: _CALL.takes_tensors and _is_value_for_a_graph(tensor),
)


@contextlib.contextmanager
def eager_tensors_as_constants():
  """Turns eager tensors of users' functions into constants of any graph.

  Otherwise TensorFlow's functions capture them as inputs, and TFF's graphs
  refuse them.
  """
  before = _CALL.takes_tensors
  _CALL.takes_tensors = True
  try:
    yield
  finally:
    _CALL.takes_tensors = before


class PureCalls:
  """Calls of parts of a graph with tensors instead of its variables."""

  def __init__(self, graph, variables):
    self._graph = graph
    self._variables = variables
    within = [module for _, module in keras_graph.layers_within(graph)]
    random = [m for m in within if m._seed_generators]  # pylint: disable=protected-access
    # Seeds depend on the place. Dropout layers come first, as they always have.
    random.sort(key=lambda m: not isinstance(m, _DROPOUT))
    seeds = [g for m in random for g in m._seed_generators]  # pylint: disable=protected-access
    self._places = {
      id(generator): place for place, generator in enumerate(seeds)
    }

  def bind(self, inputs, outputs):
    """Returns `(weights, values, mode) -> (results, new_statistics)`.

    Args:
      inputs: Keys of the tensors that `values` replaces.
      outputs: Keys of the tensors that become the results.
    """
    nodes = self._graph.nodes_between(inputs, outputs)

    def pure(weights, values, mode=split_model.INFERENCE):
      values = dict(zip(inputs, values))
      with self.swapped(weights, mode) as new_statistics:
        values = self._graph.run(nodes, values, mode.training)
      return [values[key] for key in outputs], new_statistics

    return pure

  @contextlib.contextmanager
  def swapped(self, weights, mode):
    """Makes layers read `weights` and yields a dict for new statistics."""
    values = {
      id(variable): tf.convert_to_tensor(weights[name])
      for name, variable in self._variables.items()
      if name in weights
    }
    new_statistics = {}
    with (
      _in_call(mode, self._places),
      keras.StatelessScope(collect_losses=True) as scope,
    ):
      # Its constructor refuses weights of another shape, which methods pass.
      scope.state_mapping.update(values)
      yield new_statistics
      new_statistics.update(self._new_statistics(scope, values, mode))

  def _new_statistics(self, scope, before, mode):
    """Returns the values assigned to weights that have no gradient."""
    if scope.losses:
      adding = [
        name
        for name, module in keras_graph.layers_within(self._graph)
        if module._loss_ids  # pylint: disable=protected-access
      ]
      _refuse_as_impure(
        f'{adding[0]!r}, which adds a loss that is not a weight regularizer'
      )
    assigned = {
      key
      for key, value in scope.state_mapping.items()
      if before.get(key) is not value
    }
    new = {}
    for name, variable in self._variables.items():
      if id(variable) in assigned and mode.training and not variable.trainable:
        assigned.remove(id(variable))
        value = scope.state_mapping[id(variable)]
        if mode.example_weights is not None:
          # A batch of only padding does not change the statistics.
          has_examples = tf.reduce_sum(mode.example_weights) > 0
          value = tf.where(has_examples, value, before[id(variable)])
        new[name] = value
    for variable in self._graph.model.variables:
      if id(variable) in assigned:
        _refuse_as_impure(
          f'{variable.path!r}, which is assigned to although it is trained or '
          'an integer, or is also assigned to in inference'
        )
    return new


@contextlib.contextmanager
def _in_call(mode, places):
  before = _CALL.mode, _CALL.generators, _CALL.num_draws
  _CALL.mode, _CALL.generators = mode, places
  _CALL.num_draws = collections.Counter()
  try:
    with eager_tensors_as_constants():
      yield
  finally:
    _CALL.mode, _CALL.generators, _CALL.num_draws = before


def _refuse_as_impure(cause):
  raise ValueError(
    'Expected `model` to be made of layers that are functions of their weights '
    f'and inputs, found: {cause}.'
  )


def check_pure(model, variables):
  """Traces the model once and refuses it if it has a state of its own.

  Returns:
    The sets of types of its operations and of its last operations, and the
    names of the body's weights that the head reads.
  """
  x_spec, y_spec = domains.join(domains.batched_spec(model.element_spec))
  specs = {
    name: tf.TensorSpec(value.shape, value.dtype)
    for name, value in model.initial_weights.items()
  }
  body, head = (
    split_model.select(specs, model.weight_names(layers))
    for layers in (model.body_layers, model.head_layers)
  )
  doing = 'run'

  @tf.function(autograph=False)
  def trace(body, head, x, y, seed):
    nonlocal doing
    mode = split_model.Mode(
      True, seed, tf.ones(tf.shape(tf.nest.flatten(x)[0])[:1])
    )
    # Body and head get only their own weights.
    features, statistics = model.body(body, x, mode)
    outputs, new = model.head(head, features, mode)
    doing = 'score'
    metrics = {name: fn(y, outputs) for name, fn in model.metrics.items()}
    return outputs, model.loss(y, outputs), metrics, statistics, new

  try:
    concrete = trace.get_concrete_function(
      body, head, x_spec, y_spec, tf.TensorSpec([2], tf.int32)
    )
  except (AttributeError, TypeError, ValueError) as e:
    if str(e).startswith('Expected `model`'):
      raise
    if doing == 'run':
      _refuse_as_impure(_reason(e).rstrip('.'))
    raise ValueError(
      'Expected `model`, `loss` and `metrics` to fit labels of shape '
      f'{y_spec.shape[1:]} and dtype {y_spec.dtype.name} (set by '
      f'`label_spec`), found: {_reason(e)}'
    ) from e
  names = {
    **{id(v.handle): v.name for v in concrete.graph.variables},
    **{id(v.value.handle): name for name, v in variables.items()},
  }
  tied = []
  for tensor, placeholder in concrete.graph.captures:
    if tensor.dtype == tf.resource and placeholder.consumers():
      name = names.get(id(tensor))
      if name in body:
        tied.append(name)
        continue
      # The operation's name contains the layer's name.
      raise ValueError(
        'Expected `model` to be made of layers that read no state except their '
        'own weights, and no tables (call such layers on the examples '
        f'beforehand), found {name or "a table"!r} read in '
        f'{placeholder.consumers()[0].name!r}.'
      )
  operations = [*graph_defs.all_nodes(concrete.graph.as_graph_def())]
  for operation in operations:
    if operation.op.startswith(_IMPURE):
      raise ValueError(
        'Expected `model` to be made of layers that draw random numbers with '
        f'a keras.random.SeedGenerator, found {operation.op} in '
        f'{operation.name!r}.'
      )
  return (
    {operation.op for operation in operations},
    _last_operations(concrete.outputs[0]),
    tied,
  )


def _last_operations(tensor):
  """Returns the types of the operations that computed a tensor's values."""
  types, makers = set(), [tensor.op]
  while makers:
    operation = makers.pop()
    types.add(operation.type)
    if operation.type in _KEEPING:
      makers += [value.op for value in operation.inputs]
  return types


def _reason(error):
  """Extracts the informative line of a Keras or TensorFlow error."""
  text = re.sub(r'\x1b\[\d+m', '', str(error))
  lines = text.split('Arguments received by')[0].splitlines()
  lines = [line.strip() for line in lines if line.strip()] or [repr(error)]
  if lines[0].startswith('Exception encountered when calling'):
    return f'{lines[0]} {lines[-1]}'
  return lines[-1]
