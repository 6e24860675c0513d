"""What tests of datasets share."""

import contextlib
import csv

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.datasets import examples


@contextlib.contextmanager
def one_line_error(match, error=ValueError):
  """Expects an error whose message is one line."""
  with pytest.raises(error, match=match) as caught:
    yield caught
  assert '\n' not in str(caught.value)


def load(name, data_dir=None, num_clients=2, partition='natural', **kwargs):
  """Loads a dataset by name, by default its own clients."""
  return datasets.load_dataset(
    name,
    num_clients=num_clients,
    partition=partition,
    data_dir=data_dir and str(data_dir),
    **kwargs,
  )


def all_labels(dataset):
  """Counts of clients' labels, training and test examples together."""
  return dataset.class_counts('train') + dataset.class_counts('test')


def all_domains(dataset):
  """Counts of clients' domains, training and test examples together."""
  return dataset.domain_counts('train') + dataset.domain_counts('test')


def inputs(dataset, split):
  """The numbers of each client's inputs."""
  read = getattr(dataset, split)
  return [read(client).x.ravel().tolist() for client in dataset.client_ids]


def arrays(n=60, num_classes=3):
  """Inputs, each of which tells its own index, and labels in turn."""
  numbers = np.arange(n)
  return numbers[:, np.newaxis].astype(np.float64), numbers % num_classes


def images(shape, num_train=40, num_test=20):
  """The arrays of an image set: random images with labels in turn."""
  rng = np.random.default_rng(0)
  arrays = {}
  for suffix, n in (('', num_train), ('_test', num_test)):
    arrays[f'x{suffix}'] = rng.integers(0, 256, (n, *shape), np.uint8)
    arrays[f'y{suffix}'] = np.arange(n, dtype=np.uint8) % 10
  return arrays


def write_image_set(folder, name, shape, **changes):
  """Writes `images` with changes, and returns them."""
  arrays = {**images(shape), **changes}
  np.savez(folder / f'{name}.npz', **arrays)
  return arrays


def spec(*shape, x=tf.float32, domain=False):
  """The spec of examples with class labels."""
  return examples.element_spec(tf.TensorSpec(shape, x), has_domain=domain)


def write_csv(path, heading, rows):
  """Writes a table, and returns its path."""
  with open(path, 'w', newline='', encoding='utf-8') as file:
    csv.writer(file).writerows([heading, *rows])
  return str(path)


def client_data(clients):
  """TFF's form of each client's fields."""
  return tff.simulation.datasets.TestClientData(
    {
      client_id: {name: np.array(values) for name, values in fields.items()}
      for client_id, fields in clients.items()
    }
  )


def link_elsewhere(file, name, kind):
  """Puts another file's dataset, or a link to one, in place of one of HDF5.

  Args:
    kind: 'external', 'soft', 'group', 'virtual' or 'storage'.
  """
  group, _, leaf = name.rpartition('/')
  own = file[name][()]
  path = f'{file.filename}.other'
  with h5py.File(path, 'w') as other:
    other[leaf] = own
  del file[name]
  if kind == 'external':
    file[name] = h5py.ExternalLink(path, leaf)
  elif kind == 'soft':
    file['linked'] = h5py.ExternalLink(path, leaf)
    file[name] = h5py.SoftLink('/linked')
  elif kind == 'group':
    del file[group]
    file[group] = h5py.ExternalLink(path, '/')
  elif kind == 'virtual':
    layout = h5py.VirtualLayout(own.shape, own.dtype)
    layout[...] = h5py.VirtualSource(path, leaf, own.shape)
    file.create_virtual_dataset(name, layout)
  else:
    external = [(path, 0, own.nbytes)]
    file.create_dataset(name, own.shape, own.dtype, external=external)


KINDS_ELSEWHERE = {
  'external': 'link',
  'soft': 'link',
  'group': 'link',
  'virtual': 'virtual or external',
  'storage': 'virtual or external',
}
