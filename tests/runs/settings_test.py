import dataclasses
import json
import os
import typing

import numpy as np
import pytest

import tff_pfl as pfl
from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  aggregators,
  personalization,
  process_options,
  training_options,
)
from tff_pfl.methods import fed_rep, registry, scaffold
from tff_pfl.runs import loop, start
from tff_pfl.runs import settings as settings_lib

_SETTINGS = pfl.Settings(
  method='fed_rep',
  num_head_epochs=3,
  head_learning_rate=0.2,
  partition='classes_per_client:3',
  num_clients=6,
  model_arguments={'widths': (16, 8), 'activation': 'elu'},
  server_learning_rate=0.5,
  server_momentum=0.9,
  fine_tune='head',
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
  'settings',
  [
    *(pfl.Settings(method=name) for name in registry.ALGORITHMS),
    *(
      pfl.Settings(method='fed_fac', threshold=threshold)
      for threshold in (np.inf, -np.inf)
    ),
    dataclasses.replace(_SETTINGS, **_LATER),
    dataclasses.replace(
      _SETTINGS,
      aggregator=pfl.PrivateMean(epsilon=3.0, delta=0.01, clip='fixed:0.5'),
      dp_metrics='none',
    ),
    dataclasses.replace(
      _SETTINGS,
      aggregator=pfl.DistributedPrivateMean(noise_multiplier=2.0, bits=16),
    ),
    dataclasses.replace(_SETTINGS, dropout_rate=0.1),
  ],
)
def test_settings_survive_json(settings):
  stored = fields.to_json(settings)
  restored = fields.from_json(pfl.Settings, json.loads(json.dumps(stored)))
  # JSON has lists where Python has tuples.
  arguments = json.loads(json.dumps(settings.model.arguments))
  assert restored == dataclasses.replace(settings, model_arguments=arguments)
  assert fields.to_json(restored) == stored
  # As a run stores them.
  record = {
    'settings': settings.to_record(),
    'seed': settings.seed,
    'rounds': fields.to_json(settings.rounds),
  }
  assert pfl.Settings.from_record(record) == restored


@pytest.fixture(name='process', scope='module')
def _process():
  data = _SETTINGS.load_data()
  return _SETTINGS.build_process(_SETTINGS.build_model(data), data)


def test_later_settings_reach_the_process():
  settings = dataclasses.replace(
    _SETTINGS,
    method='fed_avg',
    fine_tune='method',
    model='cnn',
    model_arguments={'filters': 1, 'widths': (2,), 'normalization': 'batch'},
    **_LATER,
  )
  data = settings.load_data()
  model = settings.build_model(data)
  assert [m.name for m in model.reported] == ['auc', 'top_3_accuracy']
  assert model.training_loss is not None
  process = settings.build_process(model, data)
  relative = dataclasses.replace(settings, initial_run='before')
  assert relative.start.initial_run == os.path.abspath('before')
  assert process.attacked_clients
  description = process.description
  assert description['statistics'] == 'local'
  assert description['training'] == fields.to_json(settings.process.training)


def test_settings_reach_the_process(process):
  assert process.name == 'fed_rep'
  assert _SETTINGS.load_data().num_clients == 6
  assert process.has_local_weights
  shapes = [value.shape for value in process.model.initial_weights.values()]
  assert shapes[::2] == [(64, 16), (16, 8), (8, 10)]
  # Fine-tuning needs the training data of clients that took part, too.
  assert process.needs_training_data(type('State', (), {'num_rounds': 3}))


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'method': 'fed_best'}, '`method` to be one of apfl'),
    ({'method': 3}, '`method` to be hyperparameters of a method'),
    ({'model_arguments': {'filters': 3}}, '`model_arguments.filters`'),
    ({'weight_decay': -1}, '`weight_decay` to be at least 0'),
    ({'weight_decai': 1}, '`weight_decai`. Did you mean weight_decay'),
    (
      {'initial_run': 'run', 'initial_weights': 'weights.npz'},
      '`initial_weights` to be unset with `initial_run`',
    ),
    (
      {'initial_weights': 'weights.npz', 'initial_run_part': 'body'},
      '`initial_weights` to be unset with .*`initial_run_part`',
    ),
    ({'metrics': 'auc'}, '`metrics` to be a list'),
    (
      {'method': fed_rep.FedRepHParams(optimizer=_ADAGRAD)},
      'names in place of objects',
    ),
    (
      {'method': scaffold.ScaffoldHParams(total_clients=29)},
      '`hparams.total_clients` to be 30, .*, found 29',
    ),
    (
      {'aggregator': aggregators.make_aggregator('median')},
      '`aggregator` to be a name, a PrivateMean',
    ),
    ({'dataset_arguments': {'seed': 3}}, '`dataset_arguments` to be without'),
    ({'model_arguments': {'seed': 3}}, '`model_arguments.seed`'),
    ({'partition': 'shard:2'}, '`partition` to be one of shards'),
  ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(
  changes, words, tmp_path
):
  with pytest.raises((ValueError, TypeError), match=words) as caught:
    pfl.Settings(**changes).run(str(tmp_path / 'run'))
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  'owner',
  [
    *(algorithm.hparams for algorithm in registry.ALGORITHMS.values()),
    loop.RunOptions,
    process_options.ProcessOptions,
    personalization.Personalization,
    settings_lib.DataOptions,
    settings_lib.ModelOptions,
    settings_lib.Settings,
    start.Start,
    training_options.TrainingOptions,
  ],
)
def test_every_field_refuses_other_types(owner):
  wrong = {bool: ('no', 1), int: (True, '3'), float: ('3', 1e39), str: (5,)}
  actual = set()
  for name, hint in typing.get_type_hints(owner).items():
    kinds = {*(typing.get_args(hint) if fields.is_union(hint) else [hint])}
    kinds -= {type(None)}
    for kind in kinds & set(wrong) if len(kinds) == 1 else ():
      actual.add(kind)
      for value in wrong[kind]:
        with pytest.raises(ValueError, match=f'^Expected `{name}` to be'):
          owner(**{name: value})
  assert actual


@pytest.mark.parametrize(
  'record, words',
  [
    ({'model': {'name': 'mine'}}, 'made in Python'),
    ({'settings': {}, 'trial': {}}, 'of a comparison'),
  ],
)
def test_records_without_all_settings_are_refused(record, words):
  with pytest.raises(errors.RunError, match=words):
    pfl.Settings.from_record(record)


@pytest.mark.usefixtures('no_pictures', 'one_runtime')
def test_only_honest_clients_are_scored(tmp_path):
  settings = pfl.Settings(
    method='fed_avg',
    num_steps=2,
    model='linear',
    num_clients=5,
    cohort_size=5,
    num_rounds=1,
    attack='sign_flip',
    attacked_fraction=0.4,
  )
  run = settings.run(str(tmp_path), show_progress=False)
  data, process = run.data, run.process
  honest = [n for n in range(5) if n not in process.attacked_clients]
  assert run.scores['client'].tolist() == [data.client_ids[n] for n in honest]
  assert len(honest) == 3
  train, test = (data.class_counts(split) for split in ('train', 'test'))
  right = [test[n, train[n].argmax()] / test[n].sum() for n in honest]
  assert run.summary['majority_accuracy'] == pytest.approx(np.mean(right))


def test_flags_without_their_dashes_are_names_of_settings():
  settings = pfl.Settings(
    method='fed_rep',
    learning_rate=0.3,
    head_learning_rate=0.2,
    model_widths=[np.int64(8)],
    dataset_classes=(1, 2),
  )
  hparams = settings.method
  assert (hparams.head_learning_rate, hparams.body_learning_rate) == (0.2, 0.3)
  assert settings.model.arguments == {'widths': [8]}
  assert settings.data.arguments == {'classes': (1, 2)}
  changed = dataclasses.replace(settings, model_activation='elu', num_rounds=3)
  assert changed.model.arguments == {'widths': [8], 'activation': 'elu'}
  assert (changed.rounds.num_rounds, changed.method) == (3, hparams)
  # Steps of the defaults do not replace epochs, but given ones do.
  for given, steps in (({}, None), ({'num_steps': 3}, 3)):
    method = pfl.Settings(method='per_fed_avg', num_epochs=9, **given).method
    assert (method.num_epochs, method.num_steps) == (9, steps)
  # Not the model's, which has no use for it with this method.
  own = pfl.Settings(method='fed_dar', reweight_domains=False)
  assert not own.method.reweight_domains


def test_a_hyperparameter_with_the_name_of_another_setting_is_refused(
  monkeypatch,
):
  @fields.dataclass
  class Ambiguous(pfl.LocalTrainingHParams):
    num_clients: int = 3

  monkeypatch.setattr(registry, 'ALGORITHMS', {**registry.ALGORITHMS})
  pfl.method('for three clients', Ambiguous)(registry.method)
  with pytest.raises(
    ValueError,
    match="`method` to be .* names .* 'method with num_clients'",
  ):
    pfl.Settings(method='method', num_clients=30)


def test_a_method_that_is_not_imported_is_named():
  stored = fields.to_json(pfl.Settings())
  stored['method']['name'] = 'mine'
  with pytest.raises(errors.RunError, match="'mine' .* import the module"):
    fields.from_json(pfl.Settings, stored)
