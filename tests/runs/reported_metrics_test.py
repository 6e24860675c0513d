"""Runs whose reports have further metrics."""

import json
import os

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from tff_pfl import datasets
from tff_pfl import runtime as runtime_lib
from tff_pfl.methods import registry
from tff_pfl.models import client_metrics, zoo
from tff_pfl.runs import evaluation, loop, report
from tff_pfl.runs import run as run_lib

pytestmark = pytest.mark.usefixtures('no_pictures', 'one_runtime')


def _data(num_classes, one_class=False):
  """Four clients; the last may have examples of class 0 alone."""
  rng = np.random.default_rng(7)
  x = rng.normal(size=[200, 3]).astype(np.float32)
  y = (x @ [1.0, -1.0, 0.5] + rng.normal(size=200)).astype(np.float32)
  if num_classes:
    y = np.digitize(y, np.linspace(-1, 1, num_classes + 1)[1:-1])
  clients = np.arange(200) % 4
  if one_class:
    y[clients == 3] = 0
  return datasets.FederatedDataset.from_arrays(
    x, y, keys=clients.astype(str), num_classes=num_classes, seed=1
  )


def _run(directory, data, metrics, method):
  model = zoo.mlp(data.element_spec, data.num_classes, widths=[4])
  return loop.run(
    registry.build(method, client_metrics.with_metrics(model, metrics)),
    data,
    str(directory),
    num_rounds=2,
    cohort_size=3,
    runtime='in_process',
    show_progress=False,
  )


def _of_numbers(y, outputs):
  return {
    'mse': sklearn_metrics.mean_squared_error(y, outputs),
    'rmse': sklearn_metrics.root_mean_squared_error(y, outputs),
    'r2': sklearn_metrics.r2_score(y, outputs),
  }


def _of_classes(y, p):
  return {
    'auc': sklearn_metrics.roc_auc_score(y, p, multi_class='ovr'),
    'f1_macro': sklearn_metrics.f1_score(y, p.argmax(axis=1), average='macro'),
    'recall': sklearn_metrics.recall_score(
      y, p.argmax(axis=1), average='macro'
    ),
  }


@pytest.fixture(name='run_of_classes', scope='module')
def _run_of_classes(tmp_path_factory):
  data = _data(3, one_class=True)
  names = ('auc', 'f1_macro', 'recall')
  return _run(tmp_path_factory.mktemp('run'), data, names, 'fed_avg')


@pytest.fixture(name='run_of_numbers', scope='module')
def _run_of_numbers(tmp_path_factory):
  names = ('mse', 'rmse', 'r2')
  return _run(tmp_path_factory.mktemp('run'), _data(None), names, 'fed_rep')


@pytest.mark.parametrize(
  'kind, expected, primary',
  [('classes', _of_classes, 'accuracy'), ('numbers', _of_numbers, 'mae')],
)
def test_scores_are_those_of_personal_models(kind, expected, primary, request):
  run = request.getfixturevalue(f'run_of_{kind}')
  assert run.primary_metric.name == primary
  scores = run.scores.set_index('client')
  for client in run.data.client_ids:
    test = run.data.test(client)
    if (test.y == 0).all():
      continue
    target = expected(test.y, run.predict(client, test.x))
    for name, value in target.items():
      np.testing.assert_allclose(
        scores.loc[client, f'after/{name}'], value, atol=1e-5
      )
  (shown,) = run_lib.summarize([run]).to_dict('records')
  for name in target:
    figures = run.summary['reported'][name]
    mean = pytest.approx(scores[f'after/{name}'].mean())
    assert figures['personal']['last'] == mean
    assert (figures['global'] is None) == (kind == 'numbers')
    assert figures['higher_is_better'] == (name not in ('mse', 'rmse'))
    assert figures['num_clients'] == (3 if name == 'auc' else 4)
    assert figures['num_scored'] == 4
    assert shown[f'personal {name.replace("_", " ")}'] == mean
    curve = run.curves[run.curves['metric'] == name]
    assert curve['value'].iloc[-1] == mean
    assert run.history[f'evaluation/personal/{name}'].iloc[-1] == mean


def test_clients_without_a_figure_are_left_out_and_counted(run_of_classes):
  run = run_of_classes
  areas = run.scores.set_index('client')['after/auc']
  assert list(areas.index[areas.isna()]) == ['3']
  figures = run.summary['reported']['auc']
  assert (figures['num_clients'], figures['num_scored']) == (3, 4)
  for which in ('personal', 'global'):
    assert figures[which]['last'] == pytest.approx(areas.mean())
  assert 'fed_avg: auc is a mean over 3 of 4 clients' in run.table()
  with open(os.path.join(run.directory, report.SUMMARY_NAME)) as file:
    assert json.load(file)['reported']['auc'] == figures

  # New clients, each by the global model, and by the mean of all models.
  runtime = runtime_lib.create_runtime('in_process')
  new = _data(3, one_class=True)
  rows, summary = evaluation.evaluate(
    run.process,
    runtime,
    run.server_state(),
    evaluation.new_states(run.process, runtime, num_known=4),
    new,
  )
  assert [row['after']['auc'] for row in rows] == [
    *(pytest.approx(area) for area in areas[:3]),
    None,
  ]
  assert summary['reported']['auc']['num_clients'] == 3
  for row, alone in zip(evaluation.score_by_ensemble(run, new, runtime), rows):
    assert row['after']['auc'] == pytest.approx(alone['after']['auc'])
