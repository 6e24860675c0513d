"""Calls of Keras layers as pure functions of their weights.

Keras's `StatelessScope` gives a layer's variables the values that the caller
gives. Two more things of Keras are replaced for the duration of a call: what
draws random numbers, so that they are the same with and without XLA, and what
batch normalization does, which counts padding. A layer that still assigns or
draws by itself is refused by name.
"""

from __future__ import annotations

import contextlib
import re
import threading

import keras
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_graph, randomness, split_model
from tff_pfl.runtime.private_api import EagerTensorBase, keras_random

_NORMALIZATION = keras.layers.BatchNormalization
_DROPOUT = (
  keras.layers.Dropout,
  keras.layers.SpatialDropout1D,
  keras.layers.SpatialDropout2D,
  keras.layers.SpatialDropout3D,
)
# How the names of operations begin that give something else each time.
_IMPURE = (
  'Random',
  'Truncated',
  'Parameterized',
  'Multinomial',
  'PyFunc',
  'Eager',
)
# Layers are shared between the pure calls of one Keras model, and tracing may
# happen on several threads.
_SWAP_LOCK = threading.RLock()


def check_layers(graph, variables):
  """Raises `ValueError` if a layer cannot be made pure."""
  for name, module in keras_graph.layers_within(graph):
    reason = _reason_against(module, graph.layers[name])
    if reason is not None:
      keras_graph.refuse(name, graph.layers[name], reason)
  for name, variable in variables.items():
    reason = None
    if tf.as_dtype(variable.dtype).size < 4:
      reason = f'is of {variable.dtype} (mixed_{variable.dtype} is supported)'
    elif variable.constraint is not None:
      reason = 'has a constraint, which acts outside of its call'
    if reason is not None:
      layer = name.rpartition('/')[0]
      while layer not in graph.layers:
        layer = layer.rpartition('/')[0]
      keras_graph.refuse(layer, graph.layers[layer], reason)


def _reason_against(module, layer):
  """Why a layer, or one within a layer, cannot be made pure; None if it can."""
  if getattr(module, 'stateful', False):
    return 'keeps its state between batches (stateful=True)'
  if isinstance(module, _DROPOUT) and module.rate == 1:
    return 'drops all'
  if getattr(module, 'activity_regularizer', None) is not None:
    return 'has an activity regularizer'
  if isinstance(module, _NORMALIZATION) and isinstance(
    layer, keras.layers.TimeDistributed
  ):
    return (
      'normalizes over steps; BatchNormalization does so without '
      'TimeDistributed'
    )
  return None


def regularizers(variables):
  """Name of a weight to its regularizer, `(weight) -> scalar`."""
  return {
    name: variable.regularizer
    for name, variable in variables.items()
    if variable.regularizer is not None
  }


class _Draws:
  """What `keras.random` draws in one call."""

  def __init__(self, mode):
    self._mode = mode

  def _seed(self, seed):
    errors.expect(
      self._mode.seed is not None or not self._mode.training,
      'mode.seed',
      'given when a model has dropout or other random layers',
      None,
    )
    if not isinstance(seed, keras.random.SeedGenerator):
      raise ValueError(
        'It draws random numbers without a keras.random.SeedGenerator of its '
        'own.'
      )
    return tf.cast(seed.next(), tf.int32)

  def dropout(self, inputs, rate, noise_shape=None, seed=None):
    if rate == 0:
      return inputs
    errors.expect(rate < 1, 'rate', 'less than 1, or all is dropped', rate)
    shape = tf.shape(inputs)
    if noise_shape is not None:
      shape = [
        shape[axis] if size is None else size
        for axis, size in enumerate(noise_shape)
      ]
    keep = randomness.keep_mask(self._seed(seed), shape, rate)
    return tf.where(keep, inputs / (1 - rate), tf.zeros_like(inputs))

  def uniform(self, shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
    drawn = randomness.uniform(self._seed(seed), shape)
    return tf.cast(minval + (maxval - minval) * drawn, dtype or tf.float32)

  def randint(self, shape, minval, maxval, dtype='int32', seed=None):
    drawn = randomness.uniform_integers(
      self._seed(seed), shape, maxval - minval
    )
    return tf.cast(drawn + minval, dtype)

  def normal(self, shape, mean=0.0, stddev=1.0, dtype=None, seed=None):
    drawn = randomness.uniform(self._seed(seed), shape)
    return tf.cast(mean + stddev * tf.math.ndtri(drawn), dtype or tf.float32)

  def truncated_normal(
    self, shape, mean=0.0, stddev=1.0, dtype=None, seed=None
  ):
    drawn = randomness.uniform(self._seed(seed), shape)
    # Within two standard deviations.
    drawn = tf.math.ndtri(0.02275013 + 0.95449974 * drawn)
    return tf.cast(mean + stddev * drawn, dtype or tf.float32)

  def categorical(self, *unused_args, **unused_kwargs):
    raise ValueError('It draws from a distribution that has no function here.')

  gamma = beta = binomial = shuffle = categorical


_DRAWN = [name for name in vars(_Draws) if not name.startswith('_')]


class PureCalls:
  """Calls parts of a graph with tensors in the place of its variables."""

  def __init__(self, graph, variables):
    self._graph = graph
    self._variables = variables
    within = [module for _, module in keras_graph.layers_within(graph)]
    random = [m for m in within if m._seed_generators]  # pylint: disable=protected-access
    # Seeds go by the number; dropout layers have always had the first ones.
    random.sort(key=lambda m: not isinstance(m, _DROPOUT))
    self._seeds = [g for m in random for g in m._seed_generators]  # pylint: disable=protected-access
    self._normalizing = [m for m in within if isinstance(m, _NORMALIZATION)]

  def bind(self, given, wanted):
    """Returns `(weights, values, mode) -> (results, new_statistics)`.

    Args:
      given: Keys of tensors, whose `values` a call gets.
      wanted: Keys of tensors, whose values it returns.
    """
    nodes = self._graph.nodes_between(given, wanted)

    def pure(weights, values, mode=split_model.INFERENCE):
      values = dict(zip(given, values))
      with self._swapped(weights, mode) as new_statistics:
        values = self._graph.run(nodes, values, mode.training)
      return [values[key] for key in wanted], new_statistics

    return pure

  @contextlib.contextmanager
  def _swapped(self, weights, mode):
    """Has layers read `weights`; yields what will have their new statistics."""
    given = {
      id(variable): tf.convert_to_tensor(weights[name])
      for name, variable in self._variables.items()
      if name in weights
    }
    for position, generator in enumerate(self._seeds):
      seed = tf.zeros([2], tf.int32)
      if mode.training and mode.seed is not None:
        seed = randomness.fold_in(mode.seed, position)
      given[id(generator.state)] = tf.cast(seed, generator.state.dtype)
    new_statistics = {}
    draws = _Draws(mode)
    with eager_tensors_as_constants(), contextlib.ExitStack() as stack:
      for name in _DRAWN:
        stack.enter_context(_put(keras_random, name, getattr(draws, name)))
      for layer in self._normalizing:
        moments = _moments_of_examples(layer, mode.example_weights)
        stack.enter_context(_put(layer, '_moments', moments))
      scope = stack.enter_context(keras.StatelessScope(collect_losses=True))
      # Not by its constructor: a method may give weights of another shape.
      scope.state_mapping.update(given)
      yield new_statistics
      new_statistics.update(self._new_statistics(scope, given, mode))

  def _new_statistics(self, scope, before, mode):
    """What layers assigned to weights that have no gradient."""
    if scope.losses:
      adding = [
        name
        for name, module in keras_graph.layers_within(self._graph)
        if module._loss_ids  # pylint: disable=protected-access
      ]
      _refuse_as_impure(
        f'{adding[0]!r}, which adds a loss that is no regularizer of a weight'
      )
    for generator in self._seeds:
      scope.state_mapping.pop(id(generator.state), None)
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
          # A batch of padding only leaves the statistics as they are.
          has_examples = tf.reduce_sum(mode.example_weights) > 0
          value = tf.where(has_examples, value, before[id(variable)])
        new[name] = value
    for variable in self._graph.model.variables:
      if id(variable) in assigned:
        _refuse_as_impure(
          f'{variable.path!r}, which is assigned to and is trained, an '
          'integer, or assigned to in inference, too'
        )
    return new


@contextlib.contextmanager
def eager_tensors_as_constants():
  """Lets layers and losses use tensors of their own in any graph.

  TensorFlow's functions take them as captured inputs, and TFF's graphs not at
  all; in this block they become constants.
  """
  into_graph = EagerTensorBase.__tf_tensor__

  def as_constant(tensor, dtype=None, name=None):
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    if tf.executing_eagerly() or not is_number:
      return into_graph(tensor, dtype, name)
    return tf.constant(tensor.numpy(), dtype or tensor.dtype, name=name)

  with _SWAP_LOCK:
    EagerTensorBase.__tf_tensor__ = as_constant
    try:
      yield
    finally:
      EagerTensorBase.__tf_tensor__ = into_graph


def _refuse_as_impure(found):
  raise ValueError(
    'Expected `model` to be made of layers that are functions of their weights '
    f'and inputs, found: {found}.'
  )


@contextlib.contextmanager
def _put(owner, name, value):
  """Gives a layer or a module another attribute for a while."""
  attributes = vars(owner)
  missing = object()
  before = attributes.get(name, missing)
  attributes[name] = value
  try:
    yield
  finally:
    if before is missing:
      del attributes[name]
    else:
      attributes[name] = before


def _moments_of_examples(layer, example_weights):
  """Batch normalization's moments, in which padding does not count."""

  def moments(inputs, mask):
    shape = [-1] + [1] * (inputs.shape.rank - 1)
    if example_weights is None:
      weights = tf.ones_like(inputs[..., :1])
    else:
      weights = tf.reshape(tf.cast(example_weights, inputs.dtype), shape)
    if mask is not None:
      weights *= tf.cast(mask, inputs.dtype)[..., tf.newaxis]
    axes = layer._reduction_axes  # pylint: disable=protected-access
    return tf.nn.weighted_moments(inputs, axes, weights)

  return moments


def check_pure(graph, model, variables):
  """Traces the model once; refuses it if it still has a state of its own.

  Returns:
    The types of its operations.
  """
  x_spec = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype),
    model.element_spec['x'],
  )
  y_spec = model.element_spec['y']
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
    # Each reads its own weights only.
    features, statistics = model.body(body, x, mode)
    outputs, new = model.head(head, features, mode)
    doing = 'score'
    metrics = {name: fn(y, outputs) for name, fn in model.metrics.items()}
    return model.loss(y, outputs), metrics, statistics, new

  try:
    concrete = trace.get_concrete_function(
      body,
      head,
      x_spec,
      tf.TensorSpec([None, *y_spec.shape], y_spec.dtype),
      tf.TensorSpec([2], tf.int32),
    )
  except (AttributeError, TypeError, ValueError) as e:
    if str(e).startswith('Expected `model`'):
      raise
    if doing == 'run':
      _refuse_as_impure(_reason(e).rstrip('.'))
    raise ValueError(
      'Expected `model`, `loss` and `metrics` to fit labels of shape '
      f'{y_spec.shape} and dtype {y_spec.dtype.name} (`label_spec` says what '
      f'they are), found: {_reason(e)}'
    ) from e
  names = {
    **{id(v.handle): v.name for v in concrete.graph.variables},
    **{id(v.value.handle): name for name, v in variables.items()},
  }
  for tensor, placeholder in concrete.graph.captures:
    if tensor.dtype == tf.resource and placeholder.consumers():
      # The operation's name has the layer's in it.
      raise ValueError(
        'Expected `model` to be made of layers that read no state but the '
        'weights of their own side, body or head, found '
        f'{names.get(id(tensor), "a resource")!r} read in '
        f'{placeholder.consumers()[0].name!r}.'
      )
  graph_def = concrete.graph.as_graph_def()
  operations = [
    *graph_def.node,
    *(
      node
      for function in graph_def.library.function
      for node in function.node_def
    ),
  ]
  for operation in operations:
    if operation.op.startswith(_IMPURE):
      raise ValueError(
        'Expected `model` to be made of layers that draw random numbers by '
        f'a keras.random.SeedGenerator, found {operation.op} in '
        f'{operation.name!r}.'
      )
  return {operation.op for operation in operations}


def _reason(error):
  """The telling line of an error of Keras or TensorFlow."""
  text = re.sub(r'\x1b\[\d+m', '', str(error))
  lines = text.split('Arguments received by')[0].splitlines()
  lines = [line.strip() for line in lines if line.strip()] or [repr(error)]
  if lines[0].startswith('Exception encountered when calling'):
    return f'{lines[0]} {lines[-1]}'
  return lines[-1]
