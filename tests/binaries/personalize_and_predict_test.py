import csv
import itertools
import json

import numpy as np
import pytest

from tests.binaries import tiny
from tff_pfl import datasets, runtime
from tff_pfl.client import client_examples
from tff_pfl.simulation import finished_run, run_config, run_store

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
    '--output_dir=personalized',
  )
  return module_programs.directory / 'personalized', result


@pytest.mark.slow
def test_new_clients_are_scored_for_every_number_of_samples_and_epochs(
  personalized,
):
  directory, result = personalized
  rows = _read_csv(directory / 'new_clients.csv')
  assert [
    (row['samples'], row['epochs'], row['client']) for row in rows
  ] == list(itertools.product(['4', 'all'], ['1', '30'], _IDS))
  for row in rows:
    # A fifth of 20 examples is for the test.
    expected = 4 if row['samples'] == '4' else 16
    assert int(row['num_train_examples']) == expected
    assert int(row['num_test_examples']) == 4

  stored = json.loads((directory / 'new_clients.json').read_text())
  assert stored['algorithm'] == 'fed_rep'
  assert stored['dataset'] == 'new_clients.npz'
  assert len(stored['settings']) == 4
  table = [line.split() for line in result.out.splitlines()]
  assert table[0][:4] == ['samples', 'epochs', 'clients', 'accuracy']
  for setting, cells in zip(stored['settings'], table[2:6]):
    members = [
      row
      for row in rows
      if (row['samples'], row['epochs'])
      == (str(setting['samples']), str(setting['epochs']))
    ]
    accuracies = [float(row['after/accuracy']) for row in members]
    assert setting['clients'] == 2
    assert setting['accuracy'] == pytest.approx(np.mean(accuracies))
    assert setting['std'] == pytest.approx(np.std(accuracies))
    assert cells[:3] == [str(setting['samples']), str(setting['epochs']), '2']
    assert float(cells[3]) == pytest.approx(setting['accuracy'], abs=1e-3)
  most, least = stored['settings'][3], stored['settings'][0]
  assert most['loss'] < least['loss']
  assert most['accuracy'] > most['accuracy_before']


@pytest.mark.slow
def test_new_clients_that_cannot_train_get_the_ensemble(
  module_programs, runs, new_clients
):
  result = module_programs.succeed(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    f'--clients_npz={new_clients}',
    '--num_epochs=1',
    '--ensemble',
    '--output_dir=ensemble',
  )
  directory = module_programs.directory / 'ensemble'
  fitted, by_ensemble = (
    [
      row
      for row in _read_csv(directory / 'new_clients.csv')
      if row['samples'] == samples
    ]
    for samples in ('all', 'ensemble')
  )
  assert [row['client'] for row in by_ensemble] == list(_IDS)
  for row, other in zip(by_ensemble, fitted):
    # Two rounds of two of the six clients each.
    assert 2 <= int(row['num_models']) <= 4
    assert (row['epochs'], row['num_train_examples']) == ('0', '0')
    assert row['num_test_examples'] == other['num_test_examples']
    assert row['before/accuracy'] == ''
  stored = json.loads((directory / 'new_clients.json').read_text())
  setting = stored['settings'][1]
  assert setting['samples'] == 'ensemble'
  assert setting['accuracy_before'] is None
  accuracies = [float(row['after/accuracy']) for row in by_ensemble]
  assert setting['accuracy'] == pytest.approx(np.mean(accuracies))
  assert 'ensemble' in result.out


def test_ids_of_clients_do_not_lead_out_of_the_folder(personalized):
  directory, _ = personalized
  models = directory / finished_run.PERSONAL_MODELS_DIR
  names = sorted(path.name for path in models.iterdir())
  assert names == ['..%2F..%2Fevil%2Fclient.npz', 'plain.npz']
  assert not list(directory.parent.rglob('evil*'))


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
  path = finished_run.personal_model_path(str(directory), client)
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
  np.savez(programs.directory / 'one.npz', x=x, y=y)
  programs.succeed(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    '--clients_npz=one.npz',
    '--num_epochs=1',
    '--output_dir=out',
  )
  (row,) = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  assert row['client'] == 'client'


def _spoiled(**changes):
  x, y = _new_examples(20)
  arrays = {'x': x, 'y': y, 'client': np.repeat(['a', 'b'], 10), **changes}
  return {name: value for name, value in arrays.items() if value is not None}


def _with(array, index, value):
  array = np.array(array)
  array[index] = value
  return array


_X, _Y = _new_examples(20)
_BAD_CLIENTS = {
  'nan': (_spoiled(x=_with(_X, (3, 1, 2, 0), np.nan)), 'x[3, 1, 2, 0]'),
  'infinite': (_spoiled(x=_with(_X, 0, np.inf)), 'infinite'),
  'label_out_of_range': (_spoiled(y=_with(_Y, 4, 10)), 'y[4]'),
  'negative_label': (_spoiled(y=_with(_Y, 4, -1)), 'y[4]'),
  'lengths': (_spoiled(y=_Y[:-1]), 'as long as `x` (20 examples), found 19'),
  'length_of_keys': (_spoiled(client=np.repeat('a', 7)), '7'),
  'other_shape': (_spoiled(x=_X[:, :7]), '(7, 8, 1)'),
  'no_labels': (_spoiled(y=None), 'a file with arrays x and y'),
  'scalar_labels': (_spoiled(y=np.int64(3), client=None), '`y`'),
  'names_as_labels': (_spoiled(y=np.repeat('zero', 20)), 'Number the classes'),
}


@pytest.mark.parametrize(
  'arrays, words', _BAD_CLIENTS.values(), ids=_BAD_CLIENTS
)
def test_wrong_examples_of_new_clients_are_one_line(
  arrays, words, runs, programs
):
  np.savez(programs.directory / 'bad.npz', **arrays)
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_rep"}',
    '--clients_npz=bad.npz',
    '--output_dir=out',
  )
  assert words in message
  assert not (programs.directory / 'out' / 'new_clients.csv').exists()


def _unreadable_files(directory):
  x, y = _new_examples(20)
  good = directory / 'good.npz'
  np.savez(good, x=x, y=y)
  content = good.read_bytes()
  (directory / 'truncated.npz').write_bytes(content[:500])
  (directory / 'flipped.npz').write_bytes(
    content[:300] + bytes([content[300] ^ 1]) + content[301:]
  )
  (directory / 'empty.npz').write_bytes(b'')
  (directory / 'text.npz').write_text('x,y\n1,2\n')
  np.save(directory / 'single.npy', x)
  np.savez(directory / 'objects.npz', x=np.array([{}, []], object), y=y)
  (directory / 'folder.npz').mkdir()
  return [
    'missing.npz',
    'truncated.npz',
    'flipped.npz',
    'empty.npz',
    'text.npz',
    'single.npy',
    'objects.npz',
    'folder.npz',
  ]


def test_unreadable_files_are_one_line(runs, programs):
  for name in _unreadable_files(programs.directory):
    for program, flag, others in (
      ('personalize', 'clients_npz', ['--output_dir=out']),
      ('predict', 'input', ['--client=client_0', '--output=out.csv']),
    ):
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
    (['--dataset=digits', '--num_samples='], 'at least one number'),
    (['--dataset=digits', '--num_epochs=1,x'], "positive integers, found 'x'"),
    (['--dataset=digits', '--num_epochs='], 'at least one number'),
    (['--dataset=digits', '--num_rounds=3'], 'Expected no --num_rounds'),
    (['--dataset=digits', '--algorithm=fed_avg'], 'Expected no --algorithm'),
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
  with finished_run.FinishedRun(run_dir) as run:
    with runtime.create_runtime('in_process') as rt:
      process = run.build_process()
      expected = rt.run(
        process.personalize,
        run.server_state(process, rt),
        rt.run(process.initialize_client_state, 0),
        client_examples.padded(clients.train('plain')),
      ).weights
    path = finished_run.personal_model_path(programs.directory / 'out', 'plain')
    weights = finished_run.load_personal_model(path, run.model)
  # An epoch is a full-batch step of the method's own size, on the head.
  for name, value in weights.items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-6)
  rows = _read_csv(programs.directory / 'out' / 'new_clients.csv')
  losses = {row['epochs']: float(row['after/loss']) for row in rows}
  assert losses['2'] != losses['1']


@pytest.mark.parametrize('fine_tune', ['method', 'none'])
def test_new_clients_of_a_global_model_must_be_fine_tuned(
  fine_tune, runs, programs
):
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_avg"}',
    '--dataset=digits',
    '--output_dir=out',
    f'--fine_tune={fine_tune}',
  )
  assert message.startswith('Expected --fine_tune to be head or all')
  assert repr(fine_tune) in message


def test_epochs_of_fine_tuning_are_given_once(runs, programs):
  message = programs.fail(
    'personalize',
    f'--run_dir={runs / "fed_avg"}',
    '--dataset=digits',
    '--output_dir=out',
    '--fine_tune_num_epochs=3',
  )
  assert message.startswith('Expected no --fine_tune_num_epochs')


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
  assert message.startswith(
    'Cannot use out/personal_models: Not a directory; a '
  )
  assert (programs.directory / 'out').read_text() == 'mine'


@pytest.mark.parametrize(
  'arrays, flags, words',
  [
    ({'x': _X}, ['--client=nobody'], 'client_0 to client_5'),
    ({'x': _X}, ['--client=x', '--personal_models=.'], 'a client with a model'),
    ({'x': _X[:, :7]}, [], 'examples of shape (8, 8, 1), found'),
    ({'x': np.float32(1)}, [], 'array of shape [examples, ...]'),
    ({'z': _X}, [], 'an array x'),
    ({'x': _with(_X, 5, np.nan)}, [], 'the first at x[5, 0, 0, 0]'),
    ({'x': np.repeat('a', 3)}, [], 'a rectangular array of numbers'),
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


def test_damaged_personal_model_is_one_line(runs, programs):
  np.savez(programs.directory / 'x.npz', x=_X)
  models = programs.directory / 'personal_models'
  models.mkdir()
  (models / 'a.npz').write_bytes(b'PK\x03\x04 cut off')
  np.savez(models / 'b.npz', **{'dense_1/kernel': np.zeros([64, 4])})
  for client, words in (
    ('a', 'a.npz` to be a complete .npz file'),
    ('b', 'b.npz` to be an .npz file with dense_1/kernel and dense_1/bias'),
  ):
    message = programs.fail(
      'predict',
      f'--run_dir={runs / "fed_rep"}',
      '--personal_models=.',
      f'--client={client}',
      '--input=x.npz',
      '--output=out.csv',
    )
    assert words in message


def test_folder_without_a_run_is_one_line(programs):
  np.savez(programs.directory / 'x.npz', x=_X)
  for program, flags in (
    ('personalize', ['--dataset=digits', '--output_dir=out']),
    ('predict', ['--client=a', '--input=x.npz', '--output=out.csv']),
  ):
    message = programs.fail(program, '--run_dir=nothing', *flags)
    assert message.startswith('There is no run in nothing')
    assert message.endswith('check the name of the folder.')
  assert not (programs.directory / 'nothing').exists()
