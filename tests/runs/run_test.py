import dataclasses
import functools
import gc
import os
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tff_pfl as pfl
from tests import html_text
from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import datasets, errors, fields
from tff_pfl.core import personalization
from tff_pfl.export import tflite
from tff_pfl.methods import registry
from tff_pfl.models import (
  class_weights,
  client_metrics,
  domain_models,
  prediction,
  zoo,
)
from tff_pfl.runs import callbacks, evaluation, run_store, summary
from tff_pfl.runs import run as run_lib

pytestmark = pytest.mark.usefixtures(
  'no_pictures', 'one_runtime', 'one_process'
)

_SETTINGS = pfl.Settings(
  method='fed_rep',
  num_head_epochs=1,
  num_clients=6,
  cohort_size=2,
  num_rounds=2,
  model_arguments={'widths': [16]},
)


@pytest.fixture(scope='module', name='directory')
def _directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp('run')
  _SETTINGS.run(str(directory), show_progress=False)
  return str(directory)


@pytest.fixture(scope='module', name='run')
def _run(directory):
  return pfl.open_run(directory)


def _new_clients(run, num_clients=2):
  rng = np.random.default_rng(1)
  return datasets.FederatedDataset.from_arrays(
    rng.uniform(size=[30 * num_clients, 8, 8, 1]),
    rng.integers(10, size=30 * num_clients),
    keys=np.repeat([f'new_{i}' for i in range(num_clients)], 30),
    num_classes=10,
  )


class _Unsearched(tuple):
  def index(self, *_):
    raise AssertionError('searched')


class _Listener(callbacks.Callback):
  def __init__(self):
    self.told = []

  def on_round(self, round_number, metrics):
    self.told.append((round_number, metrics))

  def on_evaluation(self, round_number, metrics, scores):
    self.told.append((round_number, metrics, scores))


def test_results_are_data_frames(run, tmp_path):
  run_2 = pfl.open_run(run.directory)
  run_2.directory = str(shutil.copytree(run.directory, tmp_path / 'copy'))
  assert list(run.history['round']) == [1, 2]
  scores = run.scores
  assert tuple(scores['client']) == run.data.client_ids
  last = run.summary['accuracy']['last']
  assert scores['after/accuracy'].mean() == pytest.approx(last)
  evaluated = run.history['evaluation/personal/accuracy']
  assert evaluated.iloc[-1] == last
  assert f'{last:.4g}' in run.table()
  assert f'{last:.4f}'[:5] in run._repr_html_()
  assert run_lib.summarize([run])['personal accuracy'].tolist() == [last]
  named = {'a': run, 'b': run_2}
  assert list(run_lib.summarize(named)['run']) == ['a', 'b']
  assert set(run_lib.tidy(named)['run']) == {'a', 'b'}
  tidy = run_lib.tidy([run])
  assert tidy['value'].isna().sum() == 0
  assert len(tidy) == 2 * 2 * len(scores)
  assert set(tidy['round']) == {2}
  names = [
    text.get_text().partition(',')[0]
    for text in run_lib.plot([run, run_2]).get_legend().get_texts()
  ]
  assert names == [run.directory, run_2.directory]
  ax = run.plot()
  assert ax.get_title('left') == 'fed_rep on digits, 6 clients'
  (label,) = [text.get_text() for text in ax.get_legend().get_texts()]
  assert label == f'fed_rep, personal model ({last:.1%})'
  with pytest.raises(ValueError, match="metric.*accuracy.*'nothing'"):
    run.plot('nothing')
  written = pd.read_csv(os.path.join(run.directory, 'per_client.csv'))
  pd.testing.assert_frame_equal(written, scores)
  pd.testing.assert_frame_equal(
    pd.read_csv(os.path.join(run.directory, 'metrics.csv')),
    run.history,
    check_dtype=False,
  )


def test_names_are_text_in_notebooks(run, tmp_path):
  directory = tmp_path / html_text.IMAGE
  names = dict.fromkeys(('algorithm', 'dataset'), html_text.IMAGE)
  run_store.RunStore.open(directory, {**run.record, **names}).close()
  # That store has no round yet.
  figures = {**run.summary, **names, 'num_rounds': -1}
  summary.write_json(directory / 'summary.json', figures)
  shown = run_lib.Run(str(directory))._repr_html_()
  # The title has two, the table and the folder's path one.
  assert html_text.count_images(shown) == 4


def test_a_client_has_a_keras_model_that_predicts(run):
  x = run.data.test('client_2').x
  model = run.personal_model('client_2')
  np.testing.assert_allclose(
    tf.nn.softmax(model.predict(x, verbose=0)),
    run.predict('client_2', x),
    rtol=1e-5,
    atol=1e-6,
  )
  # Of its own: the next client's is another.
  before = model.get_weights()
  run.personal_model('client_3')
  toy_problems.assert_same(model.get_weights(), before)
  with pytest.raises(ValueError, match='client_id.*client_0.*nobody'):
    run.predict('nobody', x)
  np.testing.assert_array_equal(
    run.predict('client_02', x), run.predict('client_2', x)
  )


def test_the_ending_of_a_file_says_what_a_model_is_exported_as(
  tmp_path, run, monkeypatch
):
  made = []
  monkeypatch.setattr(
    tflite, 'convert', lambda *given: made.append(given) or b'file'
  )
  file = tmp_path / 'new' / 'client_3.tflite'
  path = run.export('client_03', str(file), quantization='float16')
  assert path == str(file)
  assert file.read_bytes() == b'file'
  ((functions, quantization),) = made
  assert quantization == 'float16'
  toy_problems.assert_same(
    functions.weights, dict(run.personal_weights('client_3'))
  )
  # The version is the number of rounds; without a client it is a new one's.
  path = run.export(None, str(tmp_path / 'served'))
  assert path == str(tmp_path / 'served' / '2')
  predict = tf.saved_model.load(path).signatures['predict']
  x = run.data.test('client_3').x
  np.testing.assert_allclose(
    predict(x=tf.constant(x))['probabilities'],
    run.predict(run.new_client_weights(), x),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('path', 'options', 'words'),
  [
    ('m.pb', {}, "`path` to be a .keras or .tflite file, or a folder.*'m.pb'"),
    ('m.keras', {'quantization': 'int8'}, "`quantization` to be 'none' for"),
    ('m.tflite', {'quantization': 'int7'}, '`quantization` to be one of none'),
    ('m', {'client': 'nobody'}, "`client_id` to be .*'client_0'.*'nobody'"),
  ],
)
def test_what_cannot_be_exported_is_refused(
  path, options, words, run, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=words):
    run.export(**{'client': 'client_0', 'path': path, **options})
  assert not list(tmp_path.iterdir())


def test_a_run_goes_on_keeps_its_best_models_and_tells_who_listens(
  tmp_path, run
):
  listener = _Listener()
  options = {'show_progress': False, 'callbacks': [listener]}
  settings = dataclasses.replace(_SETTINGS, num_rounds=1, keep_best=True)
  settings.run(str(tmp_path), **options)
  assert pfl.open_run(tmp_path / 'best').summary['num_rounds'] == 1
  resumed = pfl.open_run(str(tmp_path)).continue_(2, **options)
  assert [(told[0], len(told)) for told in listener.told] == [
    (number, size) for number in (1, 2) for size in (2, 3)
  ]
  _, metrics, scores = listener.told[-1]
  assert metrics['personal/accuracy'] == resumed.summary['accuracy']['last']
  pd.testing.assert_frame_equal(scores, resumed.scores)
  assert listener.told[-2][1]['loss'] == resumed.history['loss'].iloc[-1]
  # As if it had never stopped.
  for client_id in ('client_0', 'client_5'):
    toy_problems.assert_same(
      dict(resumed.personal_weights(client_id)),
      dict(run.personal_weights(client_id)),
    )
  with pytest.raises(errors.RunError, match='keep_best'):
    run.best  # noqa: B018
  best = resumed.best
  accuracy = resumed.history['evaluation/personal/accuracy']
  assert best.summary['num_rounds'] == int(accuracy.idxmax()) + 1
  best_scores = best.scores.set_index('client')['after/accuracy']
  assert best_scores.mean() == accuracy.max()
  # These are the models that had these scores.
  for client_id in ('client_1', 'client_2'):
    test = best.data.test(client_id)
    predicted = best.predict(client_id, test.x).argmax(axis=-1)
    share = np.mean(predicted == test.y)
    assert share == pytest.approx(best_scores[client_id])
  with pytest.raises(errors.RunError, match='the one to continue'):
    best.continue_(7)


def test_a_run_with_a_model_of_ones_own_is_opened_with_its_process(
  tmp_path, run
):
  process, data, directory = run.process, run.data, str(tmp_path)
  run = pfl.run(
    process, data, directory, num_rounds=1, cohort_size=2, show_progress=False
  )
  actual = pfl.open_run(directory)
  assert actual.summary == run.summary
  with pytest.raises(errors.RunError, match='give `open_run` its process'):
    actual.personal_weights('client_0')
  actual = pfl.open_run(directory, process, data)
  tuned = actual.build_process(personalization.Personalization(fine_tune='all'))
  assert tuned.description['personalization']['fine_tune'] == 'all'
  actual = actual.continue_(2, show_progress=False)
  assert actual.summary['num_rounds'] == 2
  toy_problems.assert_same(
    dict(actual.personal_weights('client_0')),
    dict(run.personal_weights('client_0')),
  )
  other = registry.build(
    'fed_rep', zoo.mlp(data.element_spec, 10, seed=1, widths=[16])
  )
  with pytest.raises(errors.RunError) as told:
    pfl.open_run(directory, other, data)
  assert 'num_head_epochs was 1, now' in str(told.value)
  assert '; model.initial_weights_sha' in str(told.value)
  assert 'set_random_seed' in str(told.value)
  with pytest.raises(ValueError, match='together with data'):
    pfl.open_run(directory, process)
  # It belongs to its model.
  weighted, scored = (
    registry.build('fed_rep', model, _SETTINGS.method)
    for model in (
      class_weights.with_class_weight(run.model, {1: 5.0}),
      client_metrics.with_metrics(run.model, ['log_loss']),
    )
  )
  with pytest.raises(errors.RunError) as told:
    pfl.open_run(directory, weighted, data)
  assert 'model.class_weight.1 was None, now 5.0. Build' in str(told.value)
  with pytest.raises(errors.RunError) as told:
    pfl.run(scored, data, directory, num_rounds=2, cohort_size=2, resume=True)
  expected = "model.metrics was ['accuracy'], now ['accuracy', 'log_loss']. G"
  assert expected in str(told.value)


def test_run_is_built_again_from_its_folder(run):
  assert run.settings == _SETTINGS
  assert run.data.num_clients == 6
  assert not os.path.exists(os.path.join(run.directory, 'warmup'))
  expected = _SETTINGS.build_model(_SETTINGS.load_data())
  toy_problems.assert_same(
    dict(run.model.initial_weights), dict(expected.initial_weights)
  )


def test_personal_weights_are_the_global_body_and_the_clients_own_head(
  run, runtime
):
  process = run.build_process()
  assert run.server_state(process, runtime).round_number == 2
  shared = run.global_weights(runtime)
  heads = []
  for client_id in run.data.client_ids:
    weights = run.personal_weights(client_id, runtime)
    assert list(weights) == list(run.model.initial_weights)
    np.testing.assert_array_equal(
      weights['dense_1/kernel'], shared['dense_1/kernel']
    )
    heads.append(np.asarray(weights['head/kernel']).tobytes())
  assert len(set(heads)) == 6


def test_new_clients_are_fitted_to_nested_samples_of_their_data(
  run, runtime, monkeypatch
):
  clients = _new_clients(run)
  # A search for each client would take the square of their number.
  clients.client_ids = _Unsearched(clients.client_ids)
  seen = []
  padded = evaluation.padding.padded

  def record(examples):
    seen.append(examples)
    return padded(examples)

  monkeypatch.setattr(evaluation.padding, 'padded', record)
  options = personalization.Personalization(new_client_epochs=1)
  for num_samples in (3, 10, None, 1000):
    evaluation.personalize(
      run, clients, options, runtime, num_samples=num_samples
    )
  trains = [examples.x for examples in seen[::2]]
  assert [len(x) for x in trains] == [3, 10, 24, 24]

  def rows(x):
    return {row.tobytes() for row in x}

  assert rows(trains[0]) < rows(trains[1]) < rows(trains[2])


def test_new_clients_that_do_not_fit_the_model_are_refused(run, runtime):
  clients = datasets.make_synthetic(2)
  options = personalization.Personalization()
  with pytest.raises(ValueError, match=r'float32\(8, 8, 1\)'):
    evaluation.score(run, clients, options, runtime)


def test_folders_without_a_run_that_can_be_used_are_refused(tmp_path, runtime):
  with pytest.raises(errors.RunError, match='There is no run'):
    pfl.open_run(str(tmp_path))
  record = {'algorithm': 'fed_rep', 'model': {'name': 'mine'}}
  run_store.RunStore.open(tmp_path / 'run', record).close()
  with warnings.catch_warnings():
    # Nothing may be left open.
    warnings.simplefilter('error', ResourceWarning)
    run = pfl.open_run(str(tmp_path / 'run'))
    with pytest.raises(errors.RunError, match='made in Python .* give `open'):
      run.data  # noqa: B018
    gc.collect()
  started = tmp_path / 'started'
  record = {
    'settings': _SETTINGS.to_record(),
    'rounds': fields.to_json(_SETTINGS.rounds),
    'seed': _SETTINGS.seed,
    'data_sha256': _SETTINGS.load_data().fingerprint,
  }
  run_store.RunStore.open(started, record).close()
  run = pfl.open_run(str(started))
  with pytest.raises(errors.RunError, match='committed no state yet'):
    run.personal_weights('client_0', runtime)
  with pytest.raises(errors.RunError, match='no summary.json.*continue it'):
    run.summary  # noqa: B018


def test_rows_of_a_frame_need_the_encoding_of_the_run(directory):
  run = pfl.open_run(directory)
  with pytest.raises(errors.RunError, match='run on a frame or table'):
    run.encoding  # noqa: B018


def test_rows_of_a_frame_are_predicted_in_their_unit(tmp_path, monkeypatch):
  days = np.arange(40)
  frame = pd.DataFrame(
    {
      'shop': np.array(['a', 'b'])[days % 2],
      'rain': np.array(['no', 'yes'])[days // 2 % 2],
      'day': days,
      'sales': 1000.0 + 10 * days,
    }
  )
  data = datasets.FederatedDataset.from_frame(
    frame, label='sales', client='shop'
  )
  process = registry.build('fed_avg', zoo.linear(data.element_spec, None))
  folder = str(tmp_path / 'run')
  pfl.run(
    process, data, folder, num_rounds=1, cohort_size=2, show_progress=False
  )
  # Nothing but the folder says how rows are encoded.
  run = pfl.open_run(folder, process, data.replaced(encoding=None))
  kernel, bias = run.personal_weights('a').values()
  means, deviations = run.encoding.means, run.encoding.deviations
  day = (days - means[0]) / deviations[0]
  x = np.stack([day, frame['rain'] == 'no', frame['rain'] == 'yes'], axis=1)
  expected = (x @ kernel + bias)[:, 0] * deviations[1] + means[1]
  rows = frame.drop(columns=['shop', 'sales']).set_index(frame['day'] + 7)
  monkeypatch.setattr(prediction, '_MAX_INPUTS', 12)
  predicted = run.predict('a', rows)
  np.testing.assert_allclose(predicted['prediction'], expected, rtol=1e-5)
  assert predicted.index.equals(rows.index)
  # Each row by its own client's model, and a new client's.
  shops = frame['shop'].to_numpy()
  opened, open_store = [], run_store.RunStore.open_for_reading
  with monkeypatch.context() as patches:
    patches.setattr(
      run_store.RunStore,
      'open_for_reading',
      lambda place: opened.append(place) or open_store(place),
    )
    predicted = run.predict(frame['shop'], frame[['rain', 'day']])
  # The run is opened once for all clients.
  assert opened == [folder]
  with pytest.raises(TypeError, match="`runtime` to be .*found 'native'"):
    run.predict(frame['shop'], rows, runtime='native')
  # Such as its rows in another order.
  with pytest.raises(ValueError, match='of the frame `x`, with its index'):
    run.predict(frame['shop'], frame[::-1])
  for shop in 'ab':
    alone = run.predict(shop, frame[shops == shop])
    np.testing.assert_allclose(predicted[shops == shop], alone, rtol=1e-6)
  assert not run.predict('a', rows[:0]).size
  new = datasets.FederatedDataset.from_frame(
    frame.assign(shop='c'), encoding=run.encoding
  )
  (weights,) = evaluation.personalize(run, new).values()
  errors_of = [
    np.abs(run.predict(client, frame)['prediction'] - frame['sales']).mean()
    for client in ('a', weights)
  ]
  assert errors_of[1] < errors_of[0]
  path = tmp_path / 'run' / 'encoding.json'
  for content, words in (('{', 'Expecting'), ('{"a": 1}', "argument 'a'")):
    path.write_text(content)
    run = pfl.open_run(folder, process, data)
    with pytest.raises(ValueError, match=f'encoding.json.*{words}'):
      run.encoding  # noqa: B018


@pytest.mark.parametrize('part', ['head', 'all'])
def test_new_clients_are_fitted_as_the_run_personalizes(part, run):
  options = personalization.Personalization(fine_tune=part)
  tuned = run_lib.Run(
    run.directory, process=run.build_process(options), data=run.data
  )
  start = run.new_client_weights()
  (weights,) = evaluation.personalize(
    tuned, run.data.subset(['client_0'])
  ).values()
  changed = [name for name in start if np.any(start[name] != weights[name])]
  body = ['dense_1/kernel', 'dense_1/bias'] if part == 'all' else []
  assert changed == [*body, 'head/kernel', 'head/bias']


def test_new_clients_classes_are_the_runs_classes_of_these_names(run, runtime):
  names = 'abcdefghij'
  named = run_lib.Run(
    run.directory,
    process=run.process,
    data=run.data.replaced(class_names=names),
  )
  client = run.data.subset(['client_0'])

  def load(client_id, split):
    examples = client.load(client_id, split)
    return examples.with_labels(9 - examples.y)

  # Its labels count from the last class.
  new = client.replaced(class_names=names[::-1], load=load)
  options = personalization.Personalization(fine_tune='head')
  for score in (
    functools.partial(evaluation.score, personalization=options),
    evaluation.score_by_ensemble,
  ):
    expected = score(named, client, runtime=runtime)
    assert score(named, new, runtime=runtime) == expected
  # No client of the run has examples of this class.
  unknown = new.replaced(class_names='jihgfedcbx')
  with pytest.raises(
    ValueError, match='among a, .*, j, found .j, .*, x in data'
  ):
    evaluation.personalize(named, unknown)


def test_run_whose_data_have_changed_is_refused(
  directory, run, runtime, monkeypatch
):
  digits = datasets.load_arrays('digits')
  x = digits.x.copy()
  x[700] += 0.1
  changed = dataclasses.replace(digits, x=x).to_clients(6)
  monkeypatch.setattr(pfl.Settings, 'load_data', lambda settings: changed)
  with pytest.raises(errors.RunError, match='data have changed since the run'):
    pfl.open_run(directory).personal_weights('client_0')
  with pytest.raises(errors.RunError, match='data have changed since the run'):
    pfl.open_run(directory, run.process, changed)


def test_saved_model_is_read_back_if_it_is_of_these_weights(tmp_path, run):
  path = str(tmp_path / 'model.npz')
  weights = dict(run.model.initial_weights)
  evaluation.save_personal_model(path, dict(reversed(weights.items())))
  actual = evaluation.load_personal_model(path, run.model)
  assert list(actual) == list(weights)
  toy_problems.assert_same(dict(actual), weights)
  for changed, words in (
    ({'head/bias': weights['head/bias']}, 'npz file with dense_1/kernel and'),
    (
      {**weights, 'dense_1/kernel': np.zeros([64, 9])},
      r"shape \(64, 16\) for 'dense_1/kernel'",
    ),
  ):
    evaluation.save_personal_model(path, changed)
    with pytest.raises(ValueError, match=words):
      evaluation.load_personal_model(path, run.model)


def test_every_client_id_has_a_file_of_its_own_in_the_folder(tmp_path, run):
  folder = tmp_path / evaluation.PERSONAL_MODELS_DIR
  folder.mkdir()
  strange = ['../../x', '..', '.', '', '/etc/x', 'a\\b', 'a\0b', 'Zoë 1']
  # These look alike when escaped, or cut.
  alike = ['a/b', 'a%2Fb', 'a%252Fb', 'a_b', 'x' * 246, 'x' * 247, 'x' * 248]
  for number, client_id in enumerate([*strange, *alike]):
    path = evaluation.personal_model_path(str(tmp_path), client_id)
    evaluation.save_personal_model(path, run.model.initial_weights)
    assert len(list(folder.iterdir())) == number + 1, client_id
    assert len(list(tmp_path.iterdir())) == 1
    assert evaluation.load_personal_model(path, run.model)


def test_predictions_of_many_examples_are_those_of_each(run):
  weights = run.model.initial_weights
  x = np.random.default_rng(0).uniform(size=[2050, 8, 8, 1])
  outputs = prediction.predict(run.model, weights, x.astype(np.float32))
  assert outputs.shape == (2050, 10)
  for index in (0, 1023, 1024, 2049):
    np.testing.assert_allclose(
      prediction.predict(run.model, weights, x[index : index + 1])[0],
      outputs[index],
      atol=1e-6,
    )
  assert prediction.predict(run.model, weights, x[:0]).shape == (0, 10)


def test_inputs_of_another_kind_or_shape_are_refused():
  model = keras_models.bridge(
    keras_models.ending_in_its_embedding(), ['embedding']
  )
  shape = [1, *model.element_spec['x'].shape]
  for x, words in (
    (np.ones(shape) / 2, 'integers'),
    (np.ones([1, *shape], int), 'examples of shape'),
  ):
    with pytest.raises(ValueError, match=f'`x` to be {words}'):
      prediction.predict(model, model.initial_weights, x)


def test_domain_decides_which_head_predicts():
  model = domain_models.domain_model(
    toy_problems.model_for('fed_dar', toy_problems.classifier()), 'multi_head'
  )
  weights = toy_problems.jittered(model.initial_weights)
  examples = toy_problems.in_turn(toy_problems.labeled_examples(20, 0))
  x, domain = examples.x, examples.domain
  outputs = [
    prediction.predict(model, weights, x, np.full_like(domain, m))
    for m in range(3)
  ]
  assert not any(
    np.allclose(outputs[m], outputs[n]) for m in range(3) for n in range(m)
  )
  np.testing.assert_allclose(
    prediction.predict(model, weights, x, domain),
    [outputs[m][i] for i, m in enumerate(domain)],
    rtol=1e-5,
  )
  for wrong, words in (
    (None, '`domain`.*found None'),
    (domain[1:], '`domain`.*examples'),
    (np.full_like(domain, 5), 'domain.*5'),
  ):
    with pytest.raises(ValueError, match=words):
      prediction.predict(model, weights, x, wrong)
