import dataclasses
import os

from binaries import small
from binaries.papers import fed_avg, fed_fac, fed_rep


def test_of_an_experiment_only_numbers_are_made_small(tmp_path):
  given = {
    'dataset_arguments': {'test_fraction': 0.2, 'normalize': True},
    'statistics': 'local',
    'weight_decay': 1e-6,
    'explained_variance': 0.5,
    'hparams': {'divided': 'kernels'},
  }
  full = dataclasses.replace(
    fed_fac.FULL['cifar100'],
    model='vgg_16',
    model_arguments={'widths': [4096, 4096], 'dropout': 0.5},
    initial_weights='of_imagenet.npz',
    **given,
  )
  sizes, folder = small.experiment(full, fed_fac.FAST, None, str(tmp_path))
  assert os.listdir(folder) == ['cifar100.npz']
  fast = {
    name: value
    for name, value in vars(fed_fac.FAST).items()
    if isinstance(value, int) or name.startswith('swept')
  }
  model_arguments = sizes.pop('model_arguments')
  assert model_arguments.pop('base_filters') == 4
  assert model_arguments == {'widths': [8, 8], 'dropout': 0.5}
  assert sizes == {
    **fast,
    **given,
    'dataset': 'cifar100',
    'optimizer': 'adam',
    'learning_rate': 0.001,
    'model': 'vgg_16',
    'initial_weights': None,
    # Of three partitions and layers.
    'thresholds': {'shards:5': 0.95},
    'layers': ['conv_1', 'dense_1'],
  }
  # An experiment on other data may follow in the same folder.
  small.experiment(fed_fac.FULL['mnist'], fed_fac.FAST, None, str(tmp_path))
  assert sorted(os.listdir(folder)) == ['cifar100.npz', 'mnist.npz']
  # Files at hand are read.
  _, folder = small.experiment(full, fed_fac.FAST, 'mine', str(tmp_path))
  assert folder == 'mine'


def test_of_an_experiment_classes_and_new_clients_data_are_kept(tmp_path):
  full = fed_rep.NewClientsSizes(
    dataset='emnist_letters',
    partition='lognormal_classes:3:4:1:50',
    new_dataset='mnist',
  )
  sizes, folder = small.experiment(
    full, fed_rep.NEW_CLIENTS_FAST, None, str(tmp_path)
  )
  assert sorted(os.listdir(folder)) == ['emnist_letters.npz', 'mnist.npz']
  assert sizes['partition'] == 'lognormal_classes:3:1.0:1.0:5.0'
  assert sizes['new_classes'] == full.new_classes
  assert sizes['nums_epochs'] == fed_rep.NEW_CLIENTS_FAST.nums_epochs
  sizes, _ = small.experiment(
    fed_avg.CkaSizes(new_dataset='digits', dataset='digits'),
    fed_avg.CKA_FAST,
    None,
    str(tmp_path / 'other'),
  )
  assert sizes['old_classes'] == fed_avg.CKA_FAST.old_classes
  assert not (tmp_path / 'other').exists()
