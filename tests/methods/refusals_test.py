"""Hyperparameters and models that methods refuse."""

import contextlib
import typing

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl.core import personalization
from tff_pfl.methods import registry

# By method, values that are out of range.
_OUT_OF_RANGE = """
  apfl: mixing_weight=1.1 mixing_learning_rate=-1.0
  ditto: proximal_strength=-1.0 personal_learning_rate=0.0
  fed_ala: mixing_learning_rate=-1.0 mixing_data_share=nan num_mixing_epochs=-1
  fed_alt: updates=both
  fed_avg: learning_rate=1e39
  fed_babu: fine_tune_scope=none num_fine_tune_epochs=0
  fed_dar: ridge=nan projection_dim=0 aggregation=mean
  fed_dbe: pull_strength=-0.1 mean_rate=nan
  fed_em: num_components=0 num_mixture_steps=0 component_seed=-1
  fed_fac: threshold=1.5 threshold=nan threshold=a explained_variance=0
    mode=both split=half analysed=biases
  fed_min_max: weight_learning_rate=-0.1
  fed_mtl: coupling_strength=-0.1
  fed_pac: pull_strength=-0.1 max_cohort_size=0
  fed_proto: pull_strength=-0.1
  fed_prox: proximal_strength=-0.1 proximal_strength=inf
  fed_rep: num_head_epochs=-1 num_body_epochs=-1 num_head_steps=0
    num_body_steps=0 head_learning_rate=0.0 body_learning_rate=-1.0
    momentum=1.0 optimizer=adamw batch_size=-1
  fed_rod: balance_exponent=-1.0
  fed_sa_lora: rank=0 scaling=0.0 adapter_seed=-1
  ifca: num_clusters=0 cluster_seed=-1
  knn_per: num_neighbors=-1 neighbor_weight=1.1 length_scale=0.0
    num_stored_examples=0
  l2gd: aggregation_probability=1.0 coupling_strength=-1.0
    coupling_strength=100.0
  p_fed_me: proximal_strength=0.0 num_inner_steps=0 inner_learning_rate=0.0
    num_adaptation_epochs=0
  per_fed_avg: inner_learning_rate=nan num_inner_steps=0 num_inner_steps=1.5
    num_adaptation_steps=-1 hessian_free_step=0.0 variant=hf inner_scope=body
  scaffold: momentum=0.5 optimizer=adam num_clients=0
"""


def _cases():
  name = None
  for word in _OUT_OF_RANGE.split():
    if word.endswith(':'):
      name = word[:-1]
      continue
    field, _, text = word.partition('=')
    value = text
    for kind in (float, int):
      with contextlib.suppress(ValueError):
        value = kind(text)
    yield name, field, value


@pytest.mark.parametrize(('name', 'field', 'value'), [*_cases()])
def test_hyperparameter_out_of_range_is_refused_by_name(name, field, value):
  with pytest.raises(
    ValueError, match=f'Expected `([^`]* )?{field}( [^`]*)?` to'
  ):
    toy_problems.hparams_for(name, **{field: value})


@pytest.mark.parametrize('name', registry.ALGORITHMS)
def test_counts_are_int32(name):
  hparams = registry.ALGORITHMS[name].hparams
  for field, kind in typing.get_type_hints(hparams).items():
    is_count = int in (kind, *typing.get_args(kind))
    # Depths are told from the model; seeds are any numbers.
    if is_count and not field.endswith(('_depth', '_seed')):
      refusal = f'`{field}` .* 2147483647], found 10{{24}}'
      with pytest.raises(ValueError, match=refusal):
        hparams(**{field: 10**24})


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
def test_what_multiplies_weights_or_steps_must_have_room(name, field):
  model = toy_problems.model_for(name, toy_problems.classifier())
  with pytest.raises(ValueError, match=f'`{field}` to be at most .* 2 GiB'):
    registry.build(name, model, **{field: 2**31 - 1})


@pytest.mark.parametrize(
  ('number', 'name'), [(10**8, 'num_steps'), (10**6, 'num_inner')]
)
def test_batches_of_a_step_must_have_room(number, name):
  with pytest.raises(ValueError, match=f'`{name}.*at most'):
    registry.build(
      'per_fed_avg', toy_problems.classifier(), num_inner_steps=number
    )


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
_FINE_TUNE_HEAD = personalization.Personalization(fine_tune='head')
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
        ('fed_avg', {'personalization': _FINE_TUNE_HEAD}),
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
