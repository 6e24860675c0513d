import dataclasses
import json
import os
import typing

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import options, personalization, training_options
from tff_pfl.methods import (
  fed_avg,
  fed_fac,
  fed_rep,
  registry,
  scaffold,
)
from tff_pfl.runs import privacy, run_config, summary

_CONFIG = run_config.RunConfig(
  algorithm='fed_rep',
  hparams=fed_rep.FedRepHParams(num_head_epochs=3, head_learning_rate=0.2),
  partition='classes_per_client:3',
  num_clients=6,
  model_arguments={'widths': (16, 8), 'activation': 'elu'},
  server_learning_rate=0.5,
  server_momentum=0.9,
  personalization=personalization.Personalization(fine_tune='head'),
  cohort_size=2,
  seed=4,
)


_ADAGRAD = tff.learning.optimizers.build_adagrad(0.5)
_LATER = {
  'statistics': 'local',
  'augmentation': 'crop:2+flip',
  'class_weight': '0:1,1:10',
  'metrics': ('auc', 'top_3_accuracy'),
  'weight_decay': 1e-4,
  'decoupled_weight_decay': 0.01,
  'max_gradient_norm': 2.0,
  'learning_rate_schedule': 'warmup:5+cosine:20',
  'server_learning_rate_schedule': 'step:10',
  'initial_run': '/runs/before',
  'initial_run_part': 'body',
  'attack': 'scale:2',
  'attacked_fraction': 0.2,
}


@pytest.mark.parametrize(
  'config',
  [
    *(run_config.RunConfig(algorithm=name) for name in registry.ALGORITHMS),
    *(
      run_config.RunConfig(
        algorithm='fed_fac', hparams=fed_fac.FedFacHParams(threshold=threshold)
      )
      for threshold in (np.inf, -np.inf)
    ),
    dataclasses.replace(_CONFIG, **_LATER),
    *(
      dataclasses.replace(_CONFIG, aggregator=aggregator)
      for aggregator in (
        privacy.PrivateMean(
          epsilon=3.0, delta=0.01, clip='fixed:0.5', metrics='none'
        ),
        privacy.DistributedPrivateMean(noise_multiplier=2.0, bits=16),
      )
    ),
    dataclasses.replace(_CONFIG, dropout_rate=0.1),
  ],
)
def test_settings_survive_json(config):
  text = summary.json_text(config.settings())
  restored = run_config.RunConfig.from_settings(json.loads(text))
  # JSON has lists where Python has tuples.
  arguments = json.loads(json.dumps(config.model_arguments))
  assert restored == dataclasses.replace(config, model_arguments=arguments)
  assert restored.settings() == config.settings()


@pytest.fixture(name='process', scope='module')
def _process():
  return _CONFIG.build_process(_CONFIG.build_model(_CONFIG.load_data()))


def test_later_settings_reach_the_process(process):
  config = dataclasses.replace(
    _CONFIG,
    algorithm='fed_avg',
    hparams=None,
    personalization=personalization.Personalization(),
    model='cnn',
    model_arguments={'filters': 1, 'widths': (2,), 'normalization': 'batch'},
    **_LATER,
  )
  model = config.build_model(config.load_data())
  assert [m.name for m in model.reported] == ['auc', 'top_3_accuracy']
  assert model.training_loss is not None
  description = config.build_process(model).description
  relative = dataclasses.replace(config, initial_run='before')
  assert relative.initial_run == os.path.abspath('before')
  assert description['statistics'] == 'local'
  assert description['max_gradient_norm'] == 2.0
  assert description['learning_rates'][:2] == pytest.approx([0.2, 0.4])
  assert description['server_learning_rates'][1:3] == pytest.approx([1, 0.1])
  assert not {'statistics', 'learning_rates'} & set(process.description)


def test_settings_reach_the_process(process):
  assert process.name == 'fed_rep'
  assert _CONFIG.load_data().num_clients == 6
  assert process.has_local_weights
  shapes = [value.shape for value in process.model.initial_weights.values()]
  assert shapes[::2] == [(64, 16), (16, 8), (8, 10)]
  # Fine-tuning needs the training data of clients that took part, too.
  assert process.needs_training_data(type('State', (), {'num_rounds': 3}))


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'algorithm': 'fed_best'}, '`algorithm` to be one of apfl'),
    ({'model': 'transformer'}, '`model` to be one of linear, mlp, cnn'),
    ({'initial_run_part': 'legs'}, '`initial_run_part` to be one of all, body'),
    (
      {'model_arguments': {'filters': 3}},
      r'\(widths, activation, initialization\), found',
    ),
    ({'weight_decay': -1}, '`weight_decay` to be a non-negative number'),
    (
      {'initial_run': 'run', 'initial_weights': 'weights.npz'},
      '`initial_weights` to be unset with `initial_run`',
    ),
    (
      {'initial_weights': 'weights.npz', 'initial_run_part': 'body'},
      '`initial_weights` to be unset with .*`initial_run_part`',
    ),
    ({'metrics': 'auc'}, '`metrics` to be a list'),
    ({'seed': -1}, r'`seed` to be an integer in \[0, 9223372036854775807\]'),
    ({'num_warmup_rounds': -1}, '`num_warmup_rounds` to be an integer'),
    ({'num_warmup_epochs': 0}, '`num_warmup_epochs` to be an integer'),
    (
      {'hparams': fed_rep.FedRepHParams(optimizer=_ADAGRAD)},
      '`hparams.optimizer` to be a name',
    ),
    ({'hparams': fed_avg.FedAvgHParams()}, '`hparams` to be a FedRepHParams'),
    (
      {
        'algorithm': 'scaffold',
        'hparams': scaffold.ScaffoldHParams(num_clients=29),
      },
      '`hparams.num_clients` to be 30, .*, found 29',
    ),
    ({'server_optimizer': 'lion'}, "found 'lion'"),
    ({'server_learning_rate': 0.0}, '`server_learning_rate`'),
    ({'client_weighting': 'size'}, '`client_weighting`'),
  ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(
  process, changes, words
):
  with pytest.raises((ValueError, TypeError), match=words) as caught:
    run_config.RunConfig(**changes).build_process(process.model)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'owner',
  [
    *(algorithm.hparams for algorithm in registry.ALGORITHMS.values()),
    options.ProcessOptions,
    personalization.Personalization,
    run_config.RunConfig,
    training_options.TrainingOptions,
  ],
)
def test_every_field_refuses_other_types(owner):
  wrong = {bool: ('no', 1), int: (True, '3'), float: ('3', 1e39), str: (5,)}
  found = set()
  for name, hint in typing.get_type_hints(owner).items():
    is_union = typing.get_origin(hint) is typing.Union
    kinds = {*(typing.get_args(hint) if is_union else [hint])} - {type(None)}
    for kind in kinds & set(wrong) if len(kinds) == 1 else ():
      found.add(kind)
      for value in wrong[kind]:
        with pytest.raises(ValueError, match=f'^Expected `{name}` to be'):
          owner(**{name: value})
  assert found


@pytest.mark.parametrize(
  'changes',
  [
    {'model': {'name': 'mine', 'shapes': {}}},
    {'notes': 'of a program of its own'},
  ],
)
def test_settings_of_a_run_of_the_library_cannot_be_built_again(changes):
  with pytest.raises(errors.RunError, match='another version or another'):
    run_config.RunConfig.from_settings({**_CONFIG.settings(), **changes})


def test_a_setting_of_an_earlier_version_that_was_unset_is_ignored():
  config = run_config.RunConfig(cohort_size=3)
  settings = {**config.settings(), 'join_rounds': None}
  assert run_config.RunConfig.from_settings(settings) == config


@pytest.mark.usefixtures('no_pictures', 'one_runtime')
def test_only_honest_clients_are_scored(tmp_path):
  config = run_config.RunConfig(
    algorithm='fed_avg',
    hparams=fed_avg.FedAvgHParams(num_steps=2),
    model='linear',
    num_clients=5,
    cohort_size=5,
    num_rounds=1,
    attack='sign_flip',
    attacked_fraction=0.4,
  )
  run = config.run(str(tmp_path), show_progress=False)
  data, process = run.data, run.process
  honest = [n for n in range(5) if n not in process.attacked_clients]
  assert run.scores['client'].tolist() == [data.client_ids[n] for n in honest]
  assert len(honest) == 3
  train, test = (data.class_counts(split) for split in ('train', 'test'))
  right = [test[n, train[n].argmax()] / test[n].sum() for n in honest]
  assert run.summary['majority_accuracy'] == pytest.approx(np.mean(right))
