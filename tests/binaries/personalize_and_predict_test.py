import csv
import itertools
import json

import numpy as np
import pytest

from tests.binaries import tiny
from tff_pfl import datasets, runtime
from tff_pfl.core import client_examples
from tff_pfl.runs import new_clients, open_run, run_config, run_store

_IDS = ('../../evil/client', 'plain')


@pytest.fixture(scope='module', name='runs')
def _runs(module_programs):
  """The folder with the runs `fed_rep` and `fed_avg`."""
  _train(module_programs, 'fed_rep', '--fed_rep_num_head_epochs=2')
  _train(module_programs, 'fed_avg', '--fed_avg_num_epochs=1')
  return module_programs.directory


def _train(programs, name, *flags):
  programs.succeed(
    'train', *tiny.FLAGS, f'--algorithm={name}', *flags, f'--output_dir={name}'
  )


def _new_examples(num_examples=40, seed=0):
  """Images of two prototypes, [n, 8, 8, 1], and their labels."""
  rng = np.random.default_rng(seed)
  y = np.arange(num_examples) % 2
  prototypes = rng.uniform(size=[2, 8, 8, 1])
  x = prototypes[y] + 0.05 * rng.normal(size=[num_examples, 8, 8, 1])
  return x.astype(np.float32), y


@pytest.fixture(scope='module', name='new_clients')
def _new_clients(module_programs):
  x, y = _new_examples()
  path = module_programs.directory / 'new_clients.npz'
  np.savez(path, x=x, y=y, client=np.repeat(_IDS, 20))
  return path


def _read_csv(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope='module', name='personalized')
def _personalized(module_programs, runs, new_clients):
  result = module_programs.succeed(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    f'--clients_npz={new_clients}',
    '--num_samples=4,all',
    '--num_epochs=1,30',
    '--ensemble',
    '--output_dir=personalized',
  )
  return module_programs.directory / 'personalized', result


def test_new_clients_are_scored_by_samples_and_epochs_and_by_ensemble(
  personalized,
):
  directory, result = personalized
  rows = _read_csv(directory / 'new_clients.csv')
  settings = [*itertools.product(['4', 'all'], ['1', '30']), ('ensemble', '0')]
  assert [(row['samples'], row['epochs'], row['client']) for row in rows] == [
    (*setting, client) for setting in settings for client in _IDS
  ]
  sizes = {'4': '4', 'all': '16', 'ensemble': '0'}
  for row in rows:
    # A fifth of 20 examples is for the test.
    assert row['num_test_examples'] == '4'
    assert row['num_train_examples'] == sizes[row['samples']]
    if row['samples'] == 'ensemble':
      # Of two rounds of two of the six clients each.
      assert 2 <= int(row['num_models']) <= 4
      assert row['before/accuracy'] == ''
  stored = json.loads((directory / 'new_clients.json').read_text())
  assert (stored['algorithm'], stored['dataset']) == (
    'fed_rep',
    'new_clients.npz',
  )
  table = [line.split() for line in result.out.splitlines()]
  assert table[0][:4] == ['samples', 'epochs', 'clients', 'accuracy']
  for i, (found, cells) in enumerate(zip(stored['settings'], table[2:])):
    accuracies = [float(r['after/accuracy']) for r in rows[2 * i : 2 * i + 2]]
    assert found['accuracy'] == pytest.approx(np.mean(accuracies))
    assert found['std'] == pytest.approx(np.std(accuracies))
    assert cells[:3] == [*settings[i], '2']
    assert float(cells[3]) == pytest.approx(found['accuracy'], abs=1e-3)
  least, _, _, most, by_ensemble = stored['settings']
  assert most['loss'] < least['loss']
  assert most['accuracy'] > most['accuracy_before']
  assert by_ensemble['accuracy_before'] is None


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
  personalized, runs, programs
):
  client = _IDS[0]
  directory, _ = personalized
  x, y = _new_examples(7)
  np.savez(programs.directory / 'x.npz', x=x)
  programs.succeed(
    'predict',
    f'--run_dir={runs / "fed_rep"}',
    f'--personal_models={directory}',
    f'--client={client}',
    '--input=x.npz',
    '--output=predictions.npz',
  )
  path = new_clients.personal_model_path(str(directory), client)
  with np.load(path) as weights:
    expected = _softmax_outputs(weights, x)
  with np.load(programs.directory / 'predictions.npz') as found:
    assert set(found.files) == {'prediction', 'probabilities'}
    np.testing.assert_allclose(found['probabilities'], expected, atol=1e-5)
    np.testing.assert_array_equal(found['prediction'], expected.argmax(axis=1))
    # The new clients have two classes, of which training has made sense.
    np.testing.assert_array_equal(found['prediction'], y)


@pytest.mark.parametrize(
  ('name', 'took_part'), [('fed_rep', True), ('fed_rep', False)]
)
def test_predictions_for_own_clients_have_the_accuracy_of_the_report(
  name, took_part, runs, programs
):
  with run_store.RunStore.open_for_reading(runs / name) as store:
    data = run_config.RunConfig.from_settings(store.config).load_data()
  row = next(
    row
    for row in _read_csv(runs / name / 'per_client.csv')
    if (row['num_rounds'] != '0') == took_part
  )
  examples = data.test(row['client'])
  np.savez(programs.directory / 'x.npz', x=examples.x)
  programs.succeed(
    'predict',
    f'--run_dir={runs / name}',
    f'--client={row["client"]}',
    '--input=x.npz',
    '--output=predictions.csv',
  )
  rows = _read_csv(programs.directory / 'predictions.csv')
  assert list(rows[0]) == [
    'example',
    'prediction',
    *(f'probability_{i}' for i in range(10)),
  ]
  assert [int(r['example']) for r in rows] == list(range(len(examples.y)))
  predictions = np.array([int(r['prediction']) for r in rows])
  probabilities = np.array(
    [[float(r[f'probability_{i}']) for i in range(10)] for r in rows]
  )
  np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
  np.testing.assert_array_equal(probabilities.argmax(axis=1), predictions)
  assert np.mean(predictions == examples.y) == pytest.approx(
    float(row['after/accuracy']), abs=1e-6
  )


def test_new_clients_may_come_from_a_dataset_by_name(runs, programs):
  programs.succeed(
    'personalize',
    f'--run_dir={runs / "fed_avg"}',
    '--dataset=digits',
    '--partition=classes_per_client:3',
    '--num_clients=3',
    '--seed=9',
    '--num_epochs=2',
    '--output_dir=out',
  )
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
    assert set(model.files) == {
      'dense_1/kernel',
      'dense_1/bias',
      'head/kernel',
      'head/bias',
    }


def test_file_without_keys_is_one_client(runs, programs):
  x, y = _new_examples(20)
  np.savez(programs.directory / 'one.npz', x=x, y=y, x_test=x[:3], y_test=y[:3])
  programs.succeed(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    '--clients_npz=one.npz',
    '--num_epochs=1',
    '--output_dir=out',
  )
  (row,) = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  assert (row['client'], row['num_test_examples']) == ('client', '3')


_X, _Y = _new_examples(20)


@pytest.mark.parametrize(
  'arrays, words',
  [
    ({'x': np.where(_X == _X[3, 1, 2, 0], np.nan, _X)}, 'x[3, 1, 2, 0]'),
    ({'y': np.where(np.arange(20) == 4, 10, _Y)}, 'y[4]'),
    ({'y': _Y[:-1]}, 'as long as `x` (20 examples), found 19'),
    ({'client': np.repeat('a', 7)}, '7'),
    ({'x': _X[:, :7]}, '(7, 8, 1)'),
    ({'y': None}, '--clients_npz to be an .npz file with arrays x and y'),
    ({'client_id': _Y}, 'x_test, y_test, client_test, domain_test only, found'),
  ],
  ids=[
    'nan',
    'label',
    'lengths',
    'length_of_keys',
    'shape',
    'no_labels',
    'name',
  ],
)
def test_wrong_examples_of_new_clients_are_one_line(
  arrays, words, runs, programs
):
  arrays = {'x': _X, 'y': _Y, 'client': np.repeat(['a', 'b'], 10), **arrays}
  arrays = {name: value for name, value in arrays.items() if value is not None}
  np.savez(programs.directory / 'bad.npz', **arrays)
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    '--clients_npz=bad.npz',
    '--output_dir=out',
  )
  assert words in message
  assert not (programs.directory / 'out' / 'new_clients.csv').exists()


def test_unreadable_files_are_one_line(runs, programs):
  (programs.directory / 'text.npz').write_text('x,y\n1,2\n')
  for program, flag, others in (
    ('personalize', 'clients_npz', ['--output_dir=out']),
    ('predict', 'input', ['--client=client_0', '--output=out.csv']),
  ):
    for name in ('missing.npz', 'text.npz'):
      message = programs.fail(
        program, f'--run_dir={runs / "fed_rep"}', f'--{flag}={name}', *others
      )
      assert message.startswith(f'Expected `{name}` to be a')


@pytest.mark.parametrize(
  'flags, words',
  [
    ([], 'one of --clients_npz, --clients_csv and --dataset'),
    (['--clients_npz=x.npz', '--dataset=digits'], 'and --dataset'),
    (['--dataset=digits', '--num_samples=0'], '--num_samples to be positive'),
    (['--dataset=digits', '--num_epochs=1,x'], "positive integers, found 'x'"),
    (['--dataset=digits', '--num_epochs='], 'at least one number'),
    (['--dataset=digits', '--num_rounds=3'], 'Expected no --num_rounds'),
    (['--dataset=digits', '--model_widths=3'], 'Expected no --model_widths'),
    (
      ['--clients_npz=x.npz', '--dataset_stride=3'],
      '--clients_npz and --dataset_stride',
    ),
    (
      ['--dataset=digits', '--fed_rep_num_head_epochs=3'],
      'Expected no --fed_rep_num_head_epochs',
    ),
    (['--dataset=synthetic'], 'float32(28, 28, 1)'),
    (['--clients_npz=x.npz', '--test_fraction=1'], '--test_fraction to be'),
    (
      ['--clients_npz=x.npz', '--test_fraction=0'],
      "has test examples, found 'none among 1 clients of x.npz",
    ),
    (['--clients_npz=one.npz'], 'at least one client has test examples'),
  ],
)
def test_wrong_flags_of_personalize_are_one_line(flags, words, runs, programs):
  x, y = _new_examples(20)
  np.savez(programs.directory / 'x.npz', x=x, y=y)
  np.savez(programs.directory / 'one.npz', x=x[:1], y=y[:1])
  message = programs.fail(
    'personalize', f'--run_dir={runs / "fed_rep"}', '--output_dir=out', *flags
  )
  assert words in message
  assert not (programs.directory / 'out' / 'new_clients.csv').exists()


@pytest.mark.slow
def test_a_method_that_adapts_its_model_does_so_for_new_clients(
  new_clients, programs
):
  _train(
    programs,
    'per_fed_avg',
    '--per_fed_avg_inner_learning_rate=0.5',
    '--per_fed_avg_inner_scope=head',
  )
  run_dir = programs.directory / 'per_fed_avg'
  programs.succeed(
    'personalize',
    f'--run_dir={run_dir}',
    f'--clients_npz={new_clients}',
    '--num_epochs=2,1',
    '--output_dir=out',
  )
  arrays = np.load(new_clients)
  clients = datasets.FederatedDataset.from_arrays(
    arrays['x'], arrays['y'], keys=arrays['client'], num_classes=10
  )
  run = open_run.open_run(run_dir)
  with runtime.create_runtime('in_process') as rt:
    process = run.build_process()
    expected = rt.run(
      process.personalize,
      run.server_state(process, rt),
      rt.run(process.initialize_client_state, 0),
      client_examples.padded(clients.train('plain')),
    ).weights
  path = new_clients.personal_model_path(programs.directory / 'out', 'plain')
  weights = new_clients.load_personal_model(path, run.model)
  # An epoch is a full-batch step of the method's own size, on the head.
  for name, value in weights.items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-6)
  rows = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  losses = {row['epochs']: float(row['after/loss']) for row in rows}
  assert losses['2'] != losses['1']


@pytest.mark.parametrize(
  'flags, words',
  [
    ('--fine_tune=none', 'Expected --fine_tune to be head or all for fed_avg'),
    ('--fine_tune_num_epochs=3', 'Expected no --fine_tune_num_epochs'),
  ],
)
def test_a_global_model_is_fine_tuned_for_the_epochs_given_once(
  flags, words, runs, programs
):
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_avg"}',
    '--dataset=digits',
    '--output_dir=out',
    flags,
  )
  assert message.startswith(words)


def test_output_that_cannot_be_written_is_one_line_before_the_work(
  runs, programs
):
  (programs.directory / 'out').write_text('mine')
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    '--dataset=digits',
    '--num_clients=6',
    '--output_dir=out',
  )
  assert message == (
    'out is there already: give another --output_dir, or --overwrite.'
  )
  assert (programs.directory / 'out').read_text() == 'mine'


@pytest.mark.parametrize(
  'arrays, flags, words',
  [
    ({'x': _X}, ['--client=nobody'], 'client_0 to client_5'),
    ({'x': _X}, ['--client=x', '--personal_models=.'], 'a client with a model'),
    ({'x': _X[:, :7]}, [], 'examples of shape (8, 8, 1), found'),
    ({'z': _X}, [], '--input to be an .npz file with arrays x, found'),
    ({'x': _X, 'z': _X}, [], "only, found 'z in x.npz'"),
    ({'x': _X}, ['--output=out.txt'], 'a .csv or .npz file'),
    ({'x': _X}, ['--output=missing/out.csv'], 'Cannot write missing/out.csv'),
  ],
)
def test_wrong_requests_for_predictions_are_one_line(
  arrays, flags, words, runs, programs
):
  np.savez(programs.directory / 'x.npz', **arrays)
  message = programs.fail(
    'predict',
    f'--run_dir={runs / "fed_rep"}',
    '--client=client_0',
    '--input=x.npz',
    '--output=out.csv',
    *flags,
  )
  assert words in message
  assert not list(programs.directory.glob('out*'))


def test_no_examples_are_no_predictions(runs, programs):
  np.savez(programs.directory / 'x.npz', x=_X[:0])
  result = programs.succeed(
    'predict',
    f'--run_dir={runs / "fed_rep"}',
    '--client=client_0',
    '--input=x.npz',
    '--output=out.csv',
  )
  assert result.out == '0 predictions: out.csv\n'
  assert not _read_csv(programs.directory / 'out.csv')


def test_folder_without_a_run_is_one_line(programs):
  np.savez(programs.directory / 'x.npz', x=_X)
  for program, flags in (
    ('personalize', ['--dataset=digits', '--output_dir=out']),
    ('predict', ['--client=a', '--input=x.npz', '--output=out.csv']),
  ):
    message = programs.fail(program, '--run_dir=nothing', *flags)
    assert message.startswith('There is no run in nothing')
