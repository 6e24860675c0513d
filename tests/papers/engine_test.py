"""The engine of the experiments: tables, trials of methods, and figures."""

import dataclasses
import types

import numpy as np
import pytest
from matplotlib.figure import Figure

import tff_pfl as pfl
from binaries.papers.engine import panels, tables, trials
from tests.papers import untrained
from tff_pfl.methods import registry

_TABLE = tables.Table(
  {
    'method': method,
    'partition': partition,
    'round': r,
    'accuracy': base + seed + r,
    'seed': seed,
  }
  for method, base in (('FedRep', 0.0), ('FedAvg', 100.0))
  for partition in ('iid', 'shards:2')
  for r in (1, 5)
  # In any order.
  for seed in (3, 2)
)


def test_values_curves_and_leads_come_by_seed():
  table = _TABLE.where(partition='iid')
  values = table.values('accuracy', method='FedAvg', round=5)
  np.testing.assert_array_equal(values, [107, 108])
  curve = table.curve('accuracy', 'round', method='FedRep')
  np.testing.assert_array_equal(curve, [[3, 7], [4, 8]])
  lead = table.lead('accuracy', 5, 1, by='round', method='FedRep')
  np.testing.assert_array_equal(lead, [4, 4])
  for several_or_none in ('FedAvg', 'Ditto'):
    with pytest.raises(ValueError, match='one row of each seed'):
      _TABLE.values('accuracy', method=several_or_none)
  # Distinct values keep their order.
  assert table.distinct('method') == ['FedRep', 'FedAvg']
  assert table.distinct('seed', round=1) == [3, 2]


def test_a_table_survives_json_with_what_rows_lack():
  rows = [
    {'layer': 'dense_1', 'cka': 0.5, 'seed': 0},
    {'layer': 2, 'seed': 1},
  ]
  table = tables.Table(tables.Table(rows).frame.to_dict('list'))
  assert table.distinct('layer') == ['dense_1', 2]
  assert table.values('cka', layer='dense_1') == [0.5]
  assert np.isnan(table.values('cka', layer=2))


def _drawn(draw, num_seeds):
  figure = Figure(layout='constrained')
  draw(_TABLE, types.SimpleNamespace(num_seeds=num_seeds), figure)
  return figure, [axes.get_title('left') for axes in figure.axes]


def test_a_figure_has_panels_and_says_what_its_bars_are():
  figure, titles = _drawn(
    panels.curves('accuracy', over='round', y_label='Score', width=3), 1
  )
  assert (figure.get_suptitle(), titles) == ('', [''])
  assert figure.axes[0].get_ylabel() == 'Score'
  figure, titles = _drawn(
    panels.accuracy_bars(
      by='round', panel='partition', title='as {}'.format, shared_legend=True
    ),
    2,
  )
  assert 'over 2 seeds' in figure.get_suptitle()
  assert titles == ['as iid', 'as shards:2']
  assert figure.axes[0].get_ylabel() == 'Test accuracy'
  assert len(figure.legends) == 1
  assert [axes.get_legend() for axes in figure.axes] == [None, None]


@dataclasses.dataclass(frozen=True)
class _Sizes:
  dataset: str = 'rotated_digits'
  num_clients: int = 5
  num_rounds: int = 9
  num_epochs: int = 3
  num_head_epochs: int = 7
  learning_rate: float = 0.3
  batch_size: int = 5
  num_seeds: int = 2


def test_methods_take_of_what_is_shared_what_they_have():
  shared = trials.training(_Sizes())
  found = trials.hparams_of('fed_rep', shared, {'momentum': 0.1})
  assert found == registry.get_algorithm('fed_rep').hparams(
    head_learning_rate=0.3,
    body_learning_rate=0.3,
    num_head_epochs=7,
    # Where both are trained in turn, an epoch is one on the body.
    num_body_epochs=3,
    batch_size=5,
    momentum=0.1,
  )
  found = trials.hparams_of('fed_avg', shared, {'learning_rate': 0.5})
  assert found == registry.get_algorithm('fed_avg').hparams(
    learning_rate=0.5, num_epochs=3, batch_size=5
  )


def test_a_run_has_its_own_settings_before_those_that_are_shared():
  context = untrained.Context(
    _Sizes(),
    lambda wanted: untrained.finished(wanted.config.seed / 2, 0.75),
    seed=4,
    data_dir='data',
  )
  fed_dar = trials.Method(
    'FedDAR, SA',
    'fed_dar',
    # The hyperparameter, although it is also a name of `pfl.Settings`.
    {'ridge': 2.0, 'num_rounds': 3, 'reweight_domains': False},
    '+ FT',
  )
  condition = trials.Condition([fed_dar], {'cohort_size': 4, 'momentum': 0.4})
  results = list(context.run({'alpha=0.1': condition}, cohort_size=3))
  assert [(*r.columns('c').values(), r.accuracy()) for r in results] == [
    ('alpha=0.1', 'FedDAR, SA', 4, 2),
    ('alpha=0.1', 'FedDAR, SA', 5, 2.5),
    ('alpha=0.1', '+ FT', 4, 0.75),
    ('alpha=0.1', '+ FT', 5, 0.75),
  ]
  assert list(results[0].columns('c')) == ['c', 'method', 'seed']
  assert {r.settings['ridge'] for r in results} == {2}
  wanted, _ = context.trials
  assert wanted.name == 'alpha=0.1-feddar__sa-4'
  assert wanted.fine_tune_variants == ('all',)
  assert wanted.config == pfl.Settings(
    dataset='rotated_digits',
    num_clients=5,
    method=registry.get_algorithm('fed_dar').hparams(
      ridge=2.0,
      reweight_domains=False,
      num_body_epochs=3,
      num_head_epochs=7,
      head_learning_rate=0.3,
      body_learning_rate=0.3,
      momentum=0.4,
      batch_size=5,
    ),
    num_rounds=3,
    rounds_per_evaluation=3,
    cohort_size=4,
    fine_tune_num_epochs=3,
    fine_tune_learning_rate=0.3,
    fine_tune_momentum=0.4,
    fine_tune_batch_size=5,
    seed=4,
    # The digits are bundled: the folder is for other experiments' data.
    data_dir=None,
  )
