import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter

from tests.binaries import data_flags_test, tiny
from tff_pfl import datasets, runtime
from tff_pfl.export import client_module, tff_files
from tff_pfl.models import prediction
from tff_pfl.runs import evaluation, settings


@pytest.fixture(scope='module', name='run')
def _run(fed_rep_run):
  """A run of FedRep, opened."""
  return settings.open_run(str(fed_rep_run))


def _flags(run, file_format, output, *more):
  return (
    f'--run_dir={run.directory}',
    f'--format={file_format}',
    f'--output={output}',
    *more,
  )


def _export(programs, *arguments):
  return programs.succeed('export', *_flags(*arguments))


def test_a_clients_keras_model_predicts_as_the_run_bit_for_bit(run, programs):
  client = run.data.client_ids[1]
  path = programs.directory / 'out' / 'm.keras'
  path.parent.mkdir()
  path.touch()
  padded = client.replace('_', '_0')
  flags = run, 'keras', 'out/m.keras', f'--client={padded}'
  assert programs.fail('export', *_flags(*flags)) == (
    'out/m.keras is there already: give another --output, or --overwrite.'
  )
  _export(programs, *flags, '--overwrite')
  loaded = keras.models.load_model(path)
  x = run.data.test(client).x
  with runtime.create_runtime('in_process') as rt:
    weights = run.personal_weights(client, rt)
  np.testing.assert_array_equal(
    tf.nn.softmax(loaded.predict(x, batch_size=len(x), verbose=0)),
    prediction.predict(run.model, weights, x),
  )


@pytest.mark.slow
def test_a_new_client_gets_the_model_that_personalize_fits(run, programs):
  rng = np.random.default_rng(0)
  x = rng.uniform(size=[30, 8, 8, 1]).astype(np.float32)
  y = (np.arange(30) % 2).astype(np.int32)
  np.savez(programs.directory / 'new.npz', x=x, y=y)
  flags = '--clients_npz=new.npz', '--num_epochs=3', '--output_dir=fitted'
  programs.succeed('personalize', f'--run_dir={run.directory}', *flags)
  path = evaluation.personal_model_path(
    str(programs.directory / 'fitted'), 'client'
  )
  expected = prediction.predict(
    run.model, evaluation.load_personal_model(path, run.model), x
  )
  # The part of its examples that it trains on.
  rows = client_module.rows_of(
    datasets.FederatedDataset.from_arrays(
      x, y, keys=['client'] * 30, num_classes=10, seed=run.settings.seed
    ).train('client')
  )

  _export(programs, run, 'tflite', 'm.tflite', '--new_client_epochs=3')
  file = interpreter.Interpreter(str(programs.directory / 'm.tflite'))
  file.get_signature_runner('personalize')(**rows)
  predicted = file.get_signature_runner('predict')(x=x)
  np.testing.assert_allclose(predicted['probabilities'], expected, atol=1e-5)

  served = programs.directory / 'served'
  (served / '1').mkdir(parents=True)
  (served / '1' / 'saved_model.pb').touch()
  flags = run, 'saved_model', 'served', '--new_client_epochs=3'
  _export(programs, *flags)
  message = programs.fail('export', *_flags(*flags))
  assert message.startswith('served/2 is there already')
  # The version is the number of rounds.
  served = tf.saved_model.load(str(served / '2'))
  weights = served.signatures['personalize'](
    **{name: tf.constant(value) for name, value in rows.items()}
  )
  predicted = served.signatures['predict_with_weights'](
    x=tf.constant(x), **weights
  )
  np.testing.assert_allclose(predicted['probabilities'], expected, atol=1e-5)


def test_a_quantized_file_comes_with_what_it_costs(run, programs):
  result = _export(programs, run, 'tflite', 'q.tflite', '--quantize=int8')
  assert 'Test accuracy, mean over 6 clients: 0.' in result.out
  file = interpreter.Interpreter(str(programs.directory / 'q.tflite'))
  assert list(file.get_signature_list()) == ['predict']


@pytest.mark.slow
def test_a_method_without_client_state_is_exported_as_computations(programs):
  flags = '--stateless', '--output_dir=run'
  programs.succeed('train', *tiny.FLAGS, *flags)
  run = settings.open_run(str(programs.directory / 'run'))
  _export(programs, run, 'tff', 'out')
  directory = str(programs.directory / 'out')
  data = [
    tf.data.Dataset.from_tensors(run.data.train(client).as_dict())
    for client in run.data.client_ids[:2]
  ]
  process = run.build_process().to_learning_process()
  with runtime.create_runtime('in_process') as rt:
    state = run.server_state(run.build_process(), rt)
    expected = rt.run(process.next, state, data).state
    loaded = tff_files.load(directory)
    actual = rt.run(loaded.next, loaded.state, data)['state']
  assert actual['round_number'] == expected.round_number == 3
  for name, value in expected.global_weights.items():
    # The program, in these tests, is without XLA.
    np.testing.assert_allclose(
      actual['global_weights'][name], value, rtol=1e-5, atol=1e-6
    )
  assert loaded.manifest['description']['settings']['aggregator'] == 'mean'


@pytest.mark.slow
def test_of_a_table_the_encoding_is_exported_too(programs, monkeypatch):
  data_flags_test.write_table(
    programs, 'ill', lambda i: ('no', 'yes')[i % 3 % 2]
  )
  programs.succeed('train', *data_flags_test.FLAGS, '--dataset_label=ill')
  # To which the table's path is relative.
  monkeypatch.chdir(programs.directory)
  run = settings.open_run('run')
  _export(programs, run, 'keras', 'out/m.keras')
  encoding = json.loads(run.encoding.text)
  out = programs.directory / 'out'
  assert json.loads((out / 'encoding.json').read_text()) == encoding
  assert json.loads((out / 'classes.json').read_text()) == ['no', 'yes']
  # The run's own folder has the encoding already.
  own = programs.directory / 'run' / 'encoding.json'
  stored = own.read_bytes()
  _export(programs, run, 'keras', 'run/m.keras')
  assert own.read_bytes() == stored


@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (['--format=keras', '--output=m'], '--output to be a .keras file'),
    (['--format=tff', '--output=m.pb'], '--output to be a folder'),
    (['--format=tff', '--output=m'], '--stateless to be given'),
    (
      ['--format=keras', '--output=m.keras', '--client=x'],
      "--client to be a client of 'digits', such as 'client_0', found 'x'",
    ),
    (['--format=tff', '--output=m', '--num_rounds=3'], 'no --num_rounds'),
    (['--format=tff', '--output=m', '--client=client_0'], 'no --client: it is'),
    (
      ['--format=keras', '--output=m.keras', '--fine_tune=all'],
      'no --fine_tune: it is for --format=saved_model or tflite',
    ),
    (['--format=saved_model', '--output=m', '--quantize=int8'], '--quantize'),
  ],
)
def test_wrong_flags_are_one_line(flags, words, run, programs):
  message = programs.fail('export', f'--run_dir={run.directory}', *flags)
  assert words in message
  assert not list(programs.directory.glob('m*'))
