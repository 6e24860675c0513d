import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.algorithms import fed_avg, fed_rep, per_fed_avg
from tff_pfl.benchmark import flops, workloads
from tff_pfl.client import example_tensors, phases
from tff_pfl.models import keras_bridge, zoo

keras = tf.keras


def _spec(*shape):
  return collections.OrderedDict(
    x=tf.TensorSpec(shape, tf.float32), y=tf.TensorSpec([], tf.int32)
  )


def _phase(**arguments):
  return phases.Phase(phases.build_optimizer('sgd', 0.1), **arguments)


def test_dense_layers_are_counted_in_order():
  model = zoo.mlp(_spec(5), 3, widths=(4, 2))
  assert flops.forward_flops(model) == ((2 * 5 * 4, 2 * 4 * 2), (2 * 2 * 3,))


def test_convolutions_are_counted_by_position():
  model = zoo.cnn(_spec(32, 32, 3), 10)
  assert flops.forward_flops(model) == (
    (
      2 * 28 * 28 * 25 * 3 * 64,
      2 * 10 * 10 * 25 * 64 * 64,
      2 * 1600 * 120,
      2 * 120 * 64,
    ),
    (2 * 64 * 10,),
  )


def test_strides_and_padding_are_counted():
  network = keras.Sequential(
    [
      keras.layers.Input((9, 8, 2)),
      keras.layers.Conv2D(3, (2, 3), strides=2, padding='same'),
      keras.layers.Flatten(),
      keras.layers.Dense(4, name='head'),
    ]
  )
  model = keras_bridge.from_keras(
    network, head_layers=['head'], loss='sparse_categorical_crossentropy'
  )
  # 5 x 4 positions.
  assert flops.forward_flops(model) == (
    (2 * 20 * 2 * 3 * 2 * 3,),
    (2 * 60 * 4,),
  )


@pytest.mark.parametrize(
  'num_examples,arguments',
  [
    (25, {'batch_size': 10, 'num_epochs': 3}),
    (25, {'batch_size': None, 'num_epochs': 2}),
    (25, {'batch_size': 10, 'num_steps': 4}),
    (25, {'batch_size': 10, 'num_steps': 6}),
    (25, {'batch_size': 10, 'num_steps': 2}),
    (25, {'batch_size': 10, 'num_steps': 4, 'batches_per_step': 3}),
    (25, {'batch_size': 7, 'num_steps': 7, 'batches_per_step': 2}),
    (25, {'batch_size': 10, 'num_epochs': 2, 'batches_per_step': 3}),
    (25, {'batch_size': 40, 'num_steps': 3}),
    (25, {'batch_size': None, 'num_steps': 3}),
    (0, {'batch_size': 10, 'num_epochs': 3}),
    (0, {'batch_size': 10, 'num_steps': 3}),
  ],
)
def test_examples_seen_are_those_of_the_training_loop(num_examples, arguments):
  phase = _phase(**arguments)
  examples = example_tensors.ExampleTensors(
    tf.zeros([32, 1]), tf.zeros([32], tf.int32), tf.constant(num_examples)
  )
  plan = phases.plan_batches(examples, phase, tf.constant([0, 1]))
  for place in range(phase.batches_per_step):
    assert flops.examples_seen(phase, num_examples, place) == np.sum(
      plan.example_weights[:, place]
    )


def test_fed_avg_step_has_no_gradient_of_the_first_inputs():
  model = zoo.mlp(_spec(5), 3, widths=(4,))
  hparams = fed_avg.FedAvgHParams(num_epochs=2)
  # Forward and gradients of the kernels of both layers, and the gradient of the
  # second one's inputs, for 7 examples twice.
  assert flops.client_cost('fed_avg', hparams, model, 7) == (
    14,
    14 * ((40 + 24) + (40 + 24) + 24),
  )


def test_fed_rep_counts_features_of_the_frozen_body_once():
  model = zoo.mlp(_spec(5), 3, widths=(4, 2))
  hparams = fed_rep.FedRepHParams(num_head_epochs=6, num_body_epochs=2)
  features = 40 + 16
  head_step = 12 + 12
  # Forward of all, gradients of the body's kernels, gradients of the inputs of
  # all layers but the first.
  body_step = (40 + 16 + 12) + (40 + 16) + (16 + 12)
  assert flops.client_cost('fed_rep', hparams, model, 7) == (
    7 * 8,
    7 * features + 7 * 6 * head_step + 7 * 2 * body_step,
  )


def test_products_with_the_hessian_are_counted_term_by_term():
  model = zoo.mlp(_spec(5), 3, widths=(4,))
  hparams = per_fed_avg.PerFedAvgHParams(
    num_steps=1, batch_size=None, variant='exact'
  )
  step = (40 + 24) + (40 + 24) + 24
  # Forward, backward; their derivatives: W h' and W' h (not of the first), the
  # same backwards, and both terms of the kernels' gradients.
  product = (40 + 24) + 24 + (40 + 24 + 24) + 2 * 24 + (40 + 24 + 24)
  assert flops.client_cost('per_fed_avg', hparams, model, 7) == (
    3 * 7,
    7 * (2 * step + product),
  )


def test_operations_of_anil_are_not_known():
  hparams = per_fed_avg.PerFedAvgHParams(inner_scope='head')
  with pytest.raises(ValueError, match='`inner_scope`'):
    flops.client_cost('per_fed_avg', hparams, zoo.mlp(_spec(5), 3), 7)


def test_head_of_several_layers_needs_gradients_between_them():
  network = keras.Sequential(
    [
      keras.layers.Input((5,)),
      keras.layers.Dense(4, name='body'),
      keras.layers.Dense(2, name='head_1'),
      keras.layers.Dense(3, name='head_2'),
    ]
  )
  model = keras_bridge.from_keras(
    network,
    head_layers=['head_1', 'head_2'],
    loss='sparse_categorical_crossentropy',
  )
  hparams = fed_rep.FedRepHParams(num_head_epochs=1, num_body_epochs=0)
  assert flops.client_cost('fed_rep', hparams, model, 1) == (
    1,
    40 + (16 + 12) + (16 + 12) + 12,
  )


@pytest.mark.parametrize(
  'name,num_examples,num_flops',
  [
    # Each client: 500 x features, 5,000 x head step, 500 x body step.
    (
      'w1',
      10 * 500 * 11,
      10 * (500 * 1_097_728 + 5000 * 2_560 + 500 * 2_492_928),
    ),
    ('w2', 10 * 2500, 25_000 * 2_494_208),
    (
      'w3',
      10 * 500 * 11,
      10 * (500 * 28_405_760 + 5000 * 2_560 + 500 * 77_693_440),
    ),
    # Two gradients of a step; four; two and a Hessian-vector product.
    ('w4', 10 * 800, 4000 * 2 * 283_280),
    ('w4h', 10 * 1200, 4000 * 4 * 283_280),
    ('w4e', 10 * 1200, 4000 * (2 * 283_280 + 462_720)),
  ],
)
def test_round_of_a_workload_has_the_flops_computed_by_hand(
  name, num_examples, num_flops
):
  workload = workloads.get_workload(name)
  cost = workload.round_cost(workload.build_model())
  assert cost == (num_examples, num_flops)


def test_method_of_unknown_cost_is_refused():
  with pytest.raises(ValueError, match='`algorithm` to be one of fed_avg'):
    flops.client_cost('local_only', None, zoo.mlp(_spec(5), 3), 7)
