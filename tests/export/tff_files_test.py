import asyncio
import dataclasses
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import datasets, errors
from tff_pfl import tff_api as tff
from tff_pfl.core import in_place
from tff_pfl.export import tff_files
from tff_pfl.methods import registry
from tff_pfl.runs import data_source
from tff_pfl.system import graph_defs

pytestmark = pytest.mark.usefixtures('runtime')

_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (7, 23)]


@pytest.fixture(scope='module', name='saved')
def _saved_fed_avg(runtime, tmp_path_factory):
  """A folder, the clients' data and the next round's result."""
  directory = tmp_path_factory.mktemp('saved')
  return directory, *_saved(directory, 'fed_avg')


def _saved(directory, name):
  """Saves a method after a round; returns the next round's result."""
  model = toy_problems.model_for(name, toy_problems.classifier())
  process = registry.build(name, model, seed=3)
  learning_process = process.to_learning_process()
  clients = toy_problems.examples_for(name, _CLIENTS)
  data = toy_problems.as_datasets(clients)
  state, _ = learning_process.next(learning_process.initialize(), data)
  manifest = tff_files.save(
    str(directory), learning_process, state, process.description
  )
  return data, learning_process.next(state, data), manifest


def _assert_same(actual, expected):
  toy_problems.assert_same(*map(toy_problems.leaves, (actual, expected)))


def test_a_loaded_process_goes_on_as_the_saved_one(saved):
  directory, data, expected, manifest = saved
  loaded = tff_files.load(str(directory))
  _assert_same(loaded.next(loaded.state, data), expected)
  assert loaded.manifest == manifest
  assert manifest['forms'] == ['map_reduce', 'distribute_aggregate']
  assert manifest['description']['aggregator'] == {'name': 'MeanFactory'}
  assert 'x=float32[?,5]' in manifest['types']['client_data']
  for name, form in (
    ('map_reduce', 'work'),
    ('distribute_aggregate', 'client_work'),
  ):
    assert f'{name}/{form}.pb' in manifest['files']
    assert (directory / name / f'{form}.pb').is_file()


def test_tffs_program_goes_on_with_a_loaded_process(saved, runtime, tmp_path):
  directory, _, (expected, _), _ = saved
  process = tff_files.load_learning_process(str(directory))
  x, y = (
    np.concatenate([getattr(client, key) for client in _CLIENTS])
    for key in 'xy'
  )
  keys = np.repeat([0, 1], [len(client.y) for client in _CLIENTS])
  data = datasets.FederatedDataset.from_arrays(x, y, keys=keys, test_fraction=0)
  released = tff.program.MemoryReleaseManager()
  with tff.framework.get_context_stack().install(runtime.program_context()):
    asyncio.run(
      tff.learning.programs.train_model(
        train_process=process,
        initial_train_state=tff_files.load(str(directory)).state,
        train_data_source=data_source.ClientDataSource(data),
        train_per_round_clients=len(_CLIENTS),
        train_total_rounds=1,
        program_state_manager=tff.program.FileProgramStateManager(tmp_path),
        model_output_manager=released,
        evaluation_manager=None,
        evaluation_periodicity=1,
      )
    )
  (state,) = released.values().values()
  toy_problems.assert_close(*map(toy_problems.leaves, (state, expected)))
  weights = process.get_model_weights(state)
  assert isinstance(weights, tff.learning.models.ModelWeights)
  toy_problems.assert_close(
    weights.trainable, tuple(expected.global_weights.values())
  )
  again = process.set_model_weights(process.initialize(), weights)
  _assert_same(again['global_weights'], state['global_weights'])
  hparams = process.get_hparams(state)
  hparams['client_work']['learning_rate_factor'] = 0.5
  assert process.set_hparams(state, hparams)['rate_factor'] == 0.5


def _nodes(computation):
  """The nodes of all graphs of a computation, and the functions."""
  actual = []

  def collect(block):
    if isinstance(block, tff.framework.CompiledComputation):
      graph_def = tf.compat.v1.GraphDef()
      block.proto.tensorflow.graph_def.Unpack(graph_def)
      actual.extend(graph_defs.all_nodes(graph_def))
      actual.extend(graph_def.library.function)
    return block, False

  tff.framework.transform_postorder(computation.to_building_block(), collect)
  return actual


def _demands(computation):
  """The variables and XLA that the graphs of a computation demand."""
  nodes = _nodes(computation)
  return {
    node.op for node in nodes if hasattr(node, 'op') and 'Variable' in node.op
  } | {
    'XLA'
    for node in nodes
    if '_XlaMustCompile' in node.attr and node.attr['_XlaMustCompile'].b
  }


def test_files_of_a_small_network_are_without_xla():
  model = toy_problems.classifier(jit_compile=True)
  process = registry.build('fed_avg', model).to_learning_process()
  assert _demands(process.next) == {'XLA'}
  assert not _demands(tff_files._portable(process.next))


def test_files_of_a_network_that_trains_in_place_are_without_variables(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(in_place, '_MANY_WEIGHTS', 1)
  model = dataclasses.replace(toy_problems.classifier(), jit_compile=False)
  process = registry.build('fed_avg', model, batch_size=4, seed=3)
  learning_process = process.to_learning_process()
  state = learning_process.initialize()
  tff_files.save(str(tmp_path), learning_process, state, {})
  loaded = tff_files.load(str(tmp_path))
  assert 'ReadVariableOp' in _demands(learning_process.next)
  assert not _demands(loaded.next)
  data = toy_problems.as_datasets(_CLIENTS)
  actual = loaded.next(loaded.state, data)
  expected = learning_process.next(state, data)
  toy_problems.assert_close(*map(toy_problems.leaves, (actual, expected)))
  form = tff_files.load_map_reduce_form(str(tmp_path))
  assert not _demands(form.work)
  by_form = tff.backends.mapreduce.get_computation_for_map_reduce_form(form)
  _assert_same(by_form(loaded.state, data), actual)


@pytest.mark.slow
def test_a_round_of_two_exchanges_has_no_forms(tmp_path):
  data, expected, manifest = _saved(tmp_path, 'fed_dar')
  assert manifest['forms'] == []
  loaded = tff_files.load(str(tmp_path))
  _assert_same(loaded.next(loaded.state, data), expected)
  with pytest.raises(errors.RunError, match='several aggregations'):
    tff_files.load_map_reduce_form(str(tmp_path))


def test_a_damaged_file_is_named(saved, tmp_path):
  directory = shutil.copytree(saved[0], tmp_path / 'copy')
  path = directory / 'state.pb'
  content = path.read_bytes()
  path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  with pytest.raises(errors.RunError, match='state.pb is not the file'):
    tff_files.load(str(directory))
  path.unlink()
  with pytest.raises(errors.RunError, match='state.pb'):
    tff_files.load(str(directory))


_ROUND = """
import pickle, sys
import tensorflow as tf, tensorflow_federated as tff
from tff_pfl import runtime
from tff_pfl.export import tff_files
loaded = tff_files.load(sys.argv[1])
with open(sys.argv[1] + '/data', 'rb') as file:
  data = [tf.data.Dataset.from_tensors(rows) for rows in pickle.load(file)]
with runtime.create_runtime('in_process') as created:
  result = created.run(loaded.next, loaded.state, data)
imported = [n for n in sys.modules if n.startswith('tff_pfl.')]
assert imported
assert not [n for n in imported if '.methods' in n or '.core.' in n]
leaves = tff.structure.flatten(
  tff.structure.from_container(result, recursive=True)
)
with open(sys.argv[1] + '/result', 'wb') as file:
  pickle.dump([tf.constant(leaf).numpy() for leaf in leaves], file)
"""


@pytest.mark.slow
def test_another_process_without_the_methods_runs_the_round(saved, tmp_path):
  directory = shutil.copytree(saved[0], tmp_path / 'copy')
  rows = [client.as_dict() for client in _CLIENTS]
  (directory / 'data').write_bytes(pickle.dumps(rows))
  subprocess.run([sys.executable, '-c', _ROUND, str(directory)], check=True)
  result = pickle.loads((directory / 'result').read_bytes())
  toy_problems.assert_same(result, toy_problems.leaves(saved[2]))
