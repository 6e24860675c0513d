"""Hyperparameters and models that methods refuse."""

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import fields
from tff_pfl.methods import registry


@pytest.mark.parametrize('name', registry.ALGORITHMS)
def test_every_hyperparameter_has_a_type_and_a_range(name):
  hparams = registry.ALGORITHMS[name].hparams
  for field, hint in fields.hints(hparams).items():
    refused = [float('nan')]
    # Depths are told from the model; TensorFlow counts in int32.
    if 'int' in repr(hint) and not field.endswith('_depth'):
      refused += [10**24, -1, True]
    if 'float' in repr(hint):
      refused += [1e39, 10**400]
    for value in refused:
      with pytest.raises((TypeError, ValueError), match=f'`{field}` to be'):
        hparams(**{field: value})


def test_another_methods_class_of_hyperparameters_is_refused(monkeypatch):
  # Settings would find the other method by it.
  monkeypatch.setattr(registry, 'ALGORITHMS', {**registry.ALGORITHMS})
  fed_avg = registry.ALGORITHMS['fed_avg']
  register = registry.method('another method', fed_avg.hparams)

  def another(model, hparams):
    return fed_avg.work(model, hparams)

  with pytest.raises(
    ValueError,
    match='`hparams` to be a class of its own for another, .* of fed_avg',
  ):
    register(another)
  # A cell of a notebook may run again.
  another.__name__ = 'fed_avg'
  assert register(another) is registry.ALGORITHMS['fed_avg'].work is another


@pytest.mark.parametrize(
  ('name', 'field', 'value'),
  [
    ('fed_ala', 'mixing_data_share', 0.0),
    ('fed_babu', 'fine_tune_scope', 'none'),
    ('fed_fac', 'threshold', 1.5),
    ('fed_fac', 'explained_variance', 0),
    ('fed_rep', 'num_head_steps', 0),
    ('fed_rep', 'momentum', 1.0),
    ('ifca', 'num_clusters', 0),
    ('l2gd', 'aggregation_probability', 1.0),
    # An aggregation round would go beyond the mean.
    ('l2gd', 'coupling_strength', 100.0),
    ('p_fed_me', 'proximal_strength', 0.0),
    ('per_fed_avg', 'num_inner_steps', 1.5),
    ('scaffold', 'momentum', 0.5),
    ('scaffold', 'optimizer', 'adam'),
  ],
)
def test_hyperparameter_out_of_range_is_refused_by_name(name, field, value):
  with pytest.raises(
    ValueError, match=f'Expected `([^`]* )?{field}( [^`]*)?` to'
  ):
    toy_problems.hparams_for(name, **{field: value})


@pytest.mark.parametrize(
  ('name', 'field'),
  [
    ('fed_avg', 'num_steps'),
    ('fed_ala', 'num_mixing_epochs'),
    ('fed_babu', 'num_fine_tune_epochs'),
    ('fed_dar', 'projection_dim'),
    ('fed_em', 'num_components'),
    ('fed_em', 'num_mixture_steps'),
    ('fed_pac', 'max_cohort_size'),
    ('fed_rep', 'num_body_steps'),
    ('fed_sa_lora', 'rank'),
    ('ifca', 'num_clusters'),
    ('knn_per', 'num_stored_examples'),
    ('p_fed_me', 'num_adaptation_epochs'),
    ('p_fed_me', 'num_inner_steps'),
    ('per_fed_avg', 'num_adaptation_steps'),
  ],
)
def test_what_multiplies_weights_or_steps_has_a_bound(name, field):
  with pytest.raises(ValueError, match=f'`{field}` to be at most 10+,'):
    toy_problems.hparams_for(name, **{field: 2**31 - 1})


def _linear():
  return toy_problems.linear_network(toy_problems.BODY, toy_problems.HEAD)


def _only_head():
  return toy_problems.linear_network(None, toy_problems.KERNEL)


def _regression():
  return toy_problems.linear_network(np.ones([2, 2]), np.ones([2, 1]))


def _with_tanh():
  network = [
    keras.layers.Input([5]),
    keras.layers.Dense(4, name='body'),
    keras.layers.Dense(3, 'tanh', name='head'),
  ]
  return toy_problems.classifier_from(keras.Sequential(network))


def _embedding_as_head():
  network = keras_models.ending_in_its_embedding()
  return keras_models.bridge(network, ['embedding'])


def _embedding_in_the_head():
  network = keras_models.ending_in_its_embedding()
  return keras_models.bridge(network, ['rnn'])


def _with_adapters():
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='body'),
      keras.layers.Dense(3, name='head'),
    ]
  )
  network.get_layer('body').enable_lora(2)
  return toy_problems.classifier_from(network)


def _without_dense_layers():
  return toy_problems.classifier_from(
    toy_problems.convolutional_and_recurrent()
  )


_ALL = registry.ALGORITHMS
_EMBEDDING_READ = "does not read 'embedding/embeddings' of the body"
_A_PART = '`personal` to be a part of the model'


@pytest.mark.parametrize(
  ('name', 'model', 'hparams', 'message'),
  [
    ('fed_alt', _linear, {'personal': 'adapter'}, "'adapter'"),
    ('fed_alt', _linear, {'personal': ''}, _A_PART),
    ('fed_alt', _linear, {'personal': 'body,head'}, _A_PART),
    ('fed_alt', _linear, {'personal': 'input:2'}, r'`personal` .*\[1, 1\]'),
    (
      *('fed_alt', _linear),
      {'updates': 'simultaneous', 'personal_num_epochs': 2},
      '`personal_num_epochs` to be left out',
    ),
    ('fed_dar', _linear, {'heads': 'domain_as_input'}, 'by_domain, unless'),
    ('fed_dar', _with_tanh, {}, 'without an activation'),
    ('fed_fac', _linear, {'layers': 'dense_9'}, "body, head.*'dense_9'"),
    ('fed_per', _linear, {'local_depth': 2}, r'`local_depth` .* in \[1, 1\]'),
    ('lg_fed_avg', _linear, {'global_depth': 0}, r'`global_depth` .* in \[1'),
    ('fed_rod', _with_tanh, {}, 'single dense layer without'),
    ('fed_sa_lora', _without_dense_layers, {}, 'layers.*the model has none'),
    (
      'fed_sa_lora',
      _with_adapters,
      {},
      '`model`.*adapters.*body/lora_kernel_a',
    ),
    (
      *('fed_split', _with_adapters),
      {'personal_elements': 'body'},
      "'body', which is of another kind",
    ),
    *(
      ('fed_split', _linear, {'personal_elements': text}, message)
      for text, message in (
        (':', "`personal_elements` to be names of layers .*found ''"),
        ('body:2', "`personal_elements` to be parts .*'body:2'"),
      )
    ),
    ('fed_alt', _linear, {'personal': 'body:2'}, '`personal` .*body:0-1'),
    *(
      (name, _embedding_as_head, {}, f'weights of its own, as {what} demands')
      for name, what in (
        ('fed_ala', 'mixing_depth'),
        ('fed_per', 'fed_per'),
        ('fed_rep', 'fed_rep'),
        ('fed_rod', 'this method'),
        ('knn_per', 'knn_per'),
      )
    ),
    (
      *('per_fed_avg', _embedding_as_head, {'inner_scope': 'head'}),
      "as inner_scope='head' demands.*reads embedding/embeddings alone",
    ),
    *(
      (name, _embedding_in_the_head, options, _EMBEDDING_READ)
      for name, options in (
        ('fed_babu', {}),
        ('fed_rep', {}),
        ('fed_avg', {'fine_tune': 'head'}),
      )
    ),
    *(
      (name, _only_head, {}, f'weights for {name} to share')
      for name in ('fed_babu', 'fed_dar', 'fed_per', 'fed_rep', 'lg_fed_avg')
    ),
    *(
      (name, _regression, {}, f'`model`.*classifier.*{name} demands')
      for name in _ALL
      if _ALL[name].needs_classes
    ),
  ],
)
def test_models_and_parts_of_them_that_do_not_fit_are_refused(
  name, model, hparams, message
):
  model = toy_problems.model_for(name, model())
  with pytest.raises(ValueError, match=message):
    registry.build(name, model, **hparams)


@pytest.mark.parametrize('name', [n for n in _ALL if _ALL[n].needs_domains])
def test_method_for_domains_refuses_a_model_without(name):
  with pytest.raises(ValueError, match=f'`model`.*{name} demands.*domain'):
    registry.build(name, toy_problems.classifier())
