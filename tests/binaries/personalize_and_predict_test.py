import csv
import itertools

import numpy as np
import pytest

from tests.binaries import tiny
from tff_pfl import datasets, runtime
from tff_pfl.core import padding
from tff_pfl.runs import evaluation, settings

_IDS = ('../../evil/client', 'plain')


@pytest.fixture(scope='module', name='fed_avg_run')
def _fed_avg_run(module_programs):
  _train(module_programs, 'fed_avg')
  return module_programs.directory / 'fed_avg'


def _train(programs, name, *flags):
  programs.succeed(
    'train', *tiny.FLAGS, f'--algorithm={name}', *flags, f'--output_dir={name}'
  )


def _command(program, run_dir, *flags):
  """The arguments of a program; of two flags of one name the last counts."""
  output = {'personalize': '--output_dir=out', 'predict': '--output=out.csv'}
  return program, f'--run_dir={run_dir}', output[program], *flags


def _new_examples(num_examples=40, seed=0):
  """Images of two prototypes, [n, 8, 8, 1], and their labels."""
  rng = np.random.default_rng(seed)
  y = np.arange(num_examples) % 2
  prototypes = rng.uniform(size=[2, 8, 8, 1])
  x = prototypes[y] + 0.05 * rng.normal(size=[num_examples, 8, 8, 1])
  return x.astype(np.float32), y


@pytest.fixture(scope='module', name='clients_npz')
def _clients_npz(module_programs):
  x, y = _new_examples()
  path = module_programs.directory / 'new_clients.npz'
  np.savez(path, x=x, y=y, client=np.repeat(_IDS, 20))
  return path


def _read_csv(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope='module', name='personalized')
def _personalized(module_programs, fed_rep_run, clients_npz):
  flags = '--num_samples=4,all', '--num_epochs=1,30', '--ensemble'
  clients = f'--clients_npz={clients_npz}'
  result = module_programs.succeed(
    *_command('personalize', fed_rep_run, clients, *flags)
  )
  return module_programs.directory / 'out', result


def test_new_clients_are_scored_by_samples_and_epochs_and_by_ensemble(
  personalized,
):
  directory, result = personalized
  rows = _read_csv(directory / 'new_clients.csv')
  settings = [*itertools.product(['4', 'all'], ['1', '30']), ('ensemble', '0')]
  assert [(row['samples'], row['epochs'], row['client']) for row in rows] == [
    (*setting, client) for setting in settings for client in _IDS
  ]
  # A fifth of 20 examples is for the test.
  assert {row['num_test_examples'] for row in rows} == {'4'}
  sizes = [row['num_train_examples'] for row in rows]
  assert sizes == ['4'] * 4 + ['16'] * 4 + ['0'] * 2
  for row in rows[-2:]:
    # Of two rounds of two of the six clients each.
    assert 2 <= int(row['num_models']) <= 4
  table = [line.split() for line in result.out.splitlines()]
  assert table[0] == (
    'samples epochs clients accuracy std accuracy_before loss'.split()
  )
  for i, setting in enumerate(settings):
    *counts, accuracy, deviation, _, _ = table[2 + i]
    accuracies = [float(r['after/accuracy']) for r in rows[2 * i : 2 * i + 2]]
    assert counts == [*setting, '2']
    assert float(accuracy) == pytest.approx(np.mean(accuracies), abs=1e-4)
    assert float(deviation) == pytest.approx(np.std(accuracies), abs=1e-4)
  least, _, _, most, by_ensemble = (row[3:] for row in table[2:7])
  assert float(most[-1]) < float(least[-1])
  assert float(most[0]) > float(most[2])
  assert by_ensemble[2] == '–'


def _softmax_outputs(weights, x):
  """The forward pass of the run's model, an MLP, without TensorFlow."""
  features = np.maximum(
    x.reshape(len(x), -1) @ weights['dense_1/kernel'] + weights['dense_1/bias'],
    0,
  )
  logits = features @ weights['head/kernel'] + weights['head/bias']
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_predictions_for_new_clients_are_those_of_their_saved_models(
  personalized, fed_rep_run, programs
):
  client = _IDS[0]
  directory, _ = personalized
  x, y = _new_examples(7)
  np.savez(programs.directory / 'x.npz', x=x)
  flags = f'--personal_models={directory}', f'--client={client}'
  programs.succeed(
    *_command('predict', fed_rep_run, '--input=x.npz', *flags),
    '--output=predictions.npz',
  )
  path = evaluation.personal_model_path(str(directory), client)
  with np.load(path) as weights:
    expected = _softmax_outputs(weights, x)
  with np.load(programs.directory / 'predictions.npz') as actual:
    assert set(actual.files) == {'prediction', 'probabilities'}
    np.testing.assert_allclose(actual['probabilities'], expected, atol=1e-5)
    np.testing.assert_array_equal(actual['prediction'], expected.argmax(axis=1))
    # The new clients have two classes, of which training has made sense.
    np.testing.assert_array_equal(actual['prediction'], y)


@pytest.mark.parametrize(
  'took_part', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_predictions_for_own_clients_have_the_accuracy_of_the_report(
  took_part, fed_rep_run, programs
):
  row = next(
    row
    for row in _read_csv(fed_rep_run / 'per_client.csv')
    if (row['num_rounds'] != '0') == took_part
  )
  examples = settings.open_run(fed_rep_run).data.test(row['client'])
  np.savez(programs.directory / 'x.npz', x=examples.x)
  padded = row['client'].replace('_', '_0')
  flags = f'--client={padded}', '--input=x.npz'
  programs.succeed(*_command('predict', fed_rep_run, *flags))
  rows = _read_csv(programs.directory / 'out.csv')
  classes = [f'probability_{i}' for i in range(10)]
  assert list(rows[0]) == ['example', 'prediction', *classes]
  assert [int(r['example']) for r in rows] == list(range(len(examples.y)))
  predictions = np.array([int(r['prediction']) for r in rows])
  probabilities = np.array([[float(r[name]) for name in classes] for r in rows])
  np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
  np.testing.assert_array_equal(probabilities.argmax(axis=1), predictions)
  assert np.mean(predictions == examples.y) == pytest.approx(
    float(row['after/accuracy']), abs=1e-6
  )


def test_new_clients_may_come_from_a_dataset_by_name(fed_avg_run, programs):
  flags = '--partition=classes_per_client:3', '--num_clients=3', '--seed=9'
  result = programs.succeed(
    *_command('personalize', fed_avg_run, '--dataset=digits', *flags),
    *('--num_epochs=2', '--fine_tune_momentum=0.9'),
  )
  assert 'scaled in another way' not in result.err
  rows = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  data = datasets.load_dataset(
    'digits', num_clients=3, partition='classes_per_client:3', seed=9
  )
  assert [row['client'] for row in rows] == list(data.client_ids)
  assert [int(row['num_train_examples']) for row in rows] == [
    data.num_train_examples(client_id) for client_id in data.client_ids
  ]
  # FedAvg has no local weights: what is fitted is all of them.
  for row in rows:
    assert float(row['after/loss']) < float(row['before/loss'])
    model = np.load(
      programs.directory / 'out' / 'personal_models' / f'{row["client"]}.npz'
    )
    assert {name.split('/')[0] for name in model.files} == {'dense_1', 'head'}


@pytest.mark.slow
def test_new_clients_that_are_scaled_unlike_the_run_are_named(
  fed_avg_run, programs
):
  result = programs.succeed(
    *_command('personalize', fed_avg_run, '--dataset=digits'),
    *('--dataset_normalize', '--num_clients=2', '--num_epochs=1'),
  )
  assert 'scaled in another way than the run' in result.err


@pytest.mark.slow
def test_file_without_keys_is_one_client(fed_rep_run, programs):
  x, y = _new_examples(20)
  np.savez(programs.directory / 'one.npz', x=x, y=y, x_test=x[:3], y_test=y[:3])
  flags = '--clients_npz=one.npz', '--num_epochs=1'
  programs.succeed(*_command('personalize', fed_rep_run, *flags))
  (row,) = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  assert (row['client'], row['num_test_examples']) == ('client', '3')


_X, _Y = _new_examples(20)


@pytest.mark.parametrize(
  'arrays, words',
  [
    ({'x': np.where(_X == _X[3, 1, 2, 0], np.nan, _X)}, 'x[3, 1, 2, 0]'),
    ({'y': np.where(np.arange(20) == 4, 10, _Y)}, 'y[4]'),
    ({'x': _X[:, :7]}, '(7, 8, 1)'),
    ({'client': np.repeat(['a', 'b'], 5)}, '`client` to '),
    # Without keys, the examples are one client's.
    (
      {'client': None, 'x_test': _X[:0], 'y_test': _Y[:0]},
      "has test examples, found 'none among 1 clients of bad.npz",
    ),
    ({'y': None}, '--clients_npz to be an .npz file with arrays x and y'),
    ({'client_id': _Y}, 'record_test, client_test, domain_test, found'),
  ],
  ids='nan label shape clients no_tests no_labels name'.split(),
)
def test_wrong_examples_of_new_clients_are_one_line(
  arrays, words, fed_rep_run, programs
):
  arrays = {'x': _X, 'y': _Y, 'client': np.repeat(['a', 'b'], 10), **arrays}
  arrays = {name: value for name, value in arrays.items() if value is not None}
  np.savez(programs.directory / 'bad.npz', **arrays)
  models = programs.directory / 'out' / 'personal_models'
  models.mkdir(parents=True)
  (models / 'earlier.npz').touch()
  flags = '--clients_npz=bad.npz', '--overwrite'
  message = programs.fail(*_command('personalize', fed_rep_run, *flags))
  assert words in message
  assert not (programs.directory / 'out' / 'new_clients.csv').exists()
  assert (models / 'earlier.npz').exists()


@pytest.mark.parametrize(
  'flags, words',
  [
    ([], 'Exactly one of (clients_npz, clients_csv, dataset)'),
    (
      ['--clients_npz=missing.npz'],
      'Expected `missing.npz` to be a file, found none',
    ),
    (['--dataset=digits', '--num_samples=0'], 'integers of at least 1 or all,'),
    (['--dataset=digits', '--num_samples='], '--num_samples to be integers'),
    (['--dataset=digits', '--num_epochs='], '--num_epochs to be integers of'),
    (['--dataset=digits', '--num_rounds=3'], 'Expected no --num_rounds'),
    (['--clients_npz=x.npz', '--num_clients=3'], 'Expected no --num_clients'),
    pytest.param(
      ['--dataset=synthetic'], 'float32(28, 28, 1)', marks=pytest.mark.slow
    ),
    pytest.param(
      ['--clients_npz=x.npz', '--test_fraction=0'],
      "has test examples, found 'none among 1 clients of x.npz",
      marks=pytest.mark.slow,
    ),
    (
      ['--run_dir={fed_avg}', '--dataset=digits', '--fine_tune=none'],
      'Expected --fine_tune to be head or all for fed_avg',
    ),
    (
      ['--dataset=digits', '--fine_tune=trained'],
      'as in a round, whatever --num_epochs is, found',
    ),
    (
      ['--dataset=digits', '--test_fraction=0.5'],
      'no --test_fraction: it is for --clients_npz',
    ),
    (
      ['--dataset=digits', '--output_dir=mine'],
      'mine is there already: give another --output_dir, or --overwrite.',
    ),
    (['--run_dir=nothing', '--dataset=digits'], 'There is no run in nothing'),
  ],
)
def test_wrong_flags_of_personalize_are_one_line(
  flags, words, fed_rep_run, fed_avg_run, programs
):
  x, y = _new_examples(20)
  np.savez(programs.directory / 'x.npz', x=x, y=y)
  (programs.directory / 'mine').touch()
  flags = [flag.format(fed_avg=fed_avg_run) for flag in flags]
  message = programs.fail(*_command('personalize', fed_rep_run, *flags))
  assert words in message
  assert not (programs.directory / 'out' / 'new_clients.csv').exists()


def test_an_exported_personalize_that_does_nothing_is_refused(
  fed_avg_run, programs
):
  flags = '--format=tflite', '--output=m.tflite', '--fine_tune=none'
  message = programs.fail('export', f'--run_dir={fed_avg_run}', *flags)
  assert 'Expected --fine_tune to be other than none for fed_avg' in message


@pytest.mark.slow
def test_a_method_that_adapts_its_model_does_so_for_new_clients(
  clients_npz, programs
):
  _train(
    programs,
    'per_fed_avg',
    '--per_fed_avg_inner_learning_rate=0.5',
    '--per_fed_avg_inner_scope=head',
  )
  run_dir = programs.directory / 'per_fed_avg'
  flags = f'--clients_npz={clients_npz}', '--num_epochs=2,1'
  programs.succeed(*_command('personalize', run_dir, *flags))
  arrays = np.load(clients_npz)
  clients = datasets.FederatedDataset.from_arrays(
    arrays['x'], arrays['y'], keys=arrays['client'], num_classes=10
  )
  run = settings.open_run(run_dir)
  with runtime.create_runtime('in_process') as rt:
    process = run.build_process()
    expected = rt.run(
      process.personalize,
      run.server_state(process, rt),
      rt.run(process.initialize_client_state, 0),
      padding.padded(clients.train('plain')),
    ).weights
  path = evaluation.personal_model_path(programs.directory / 'out', 'plain')
  weights = evaluation.load_personal_model(path, run.model)
  # An epoch is a full-batch step of the method's own size, on the head.
  for name, value in weights.items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-6)
  rows = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  losses = {row['epochs']: float(row['after/loss']) for row in rows}
  assert losses['2'] != losses['1']


@pytest.mark.parametrize(
  'arrays, flags, words',
  [
    ({'x': _X}, ['--client=nobody'], 'For a new one give --personal_models'),
    ({'x': _X}, ['--client=x', '--personal_models=.'], 'a client with a model'),
    pytest.param(
      {'x': _X[:, :7]},
      [],
      'examples of shape (8, 8, 1), found',
      marks=pytest.mark.slow,
    ),
    ({'z': _X}, [], '--input to be an .npz file with arrays x, and no'),
    ({'x': _X}, ['--output=out.txt'], 'a .csv or .npz file'),
    pytest.param(
      {'x': _X},
      ['--output=missing/out.csv'],
      'Cannot write missing/out.csv',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_wrong_requests_for_predictions_are_one_line(
  arrays, flags, words, fed_rep_run, programs
):
  np.savez(programs.directory / 'x.npz', **arrays)
  own = '--client=client_0', '--input=x.npz'
  message = programs.fail(*_command('predict', fed_rep_run, *own, *flags))
  assert words in message
  assert not list(programs.directory.glob('out*'))


@pytest.mark.slow
def test_no_examples_are_no_predictions(fed_rep_run, programs):
  np.savez(programs.directory / 'x.npz', x=_X[:0])
  flags = '--client=client_0', '--input=x.npz'
  result = programs.succeed(*_command('predict', fed_rep_run, *flags))
  assert result.out == '0 predictions: out.csv\n'
  assert not _read_csv(programs.directory / 'out.csv')
