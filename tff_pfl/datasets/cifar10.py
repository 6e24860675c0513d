"""CIFAR-10, 32x32 color pictures of animals and vehicles.

Source: A. Krizhevsky, V. Nair, G. Hinton; A. Krizhevsky, Learning Multiple
Layers of Features from Tiny Images, technical report, University of Toronto,
2009. https://www.cs.toronto.edu/~kriz/cifar.html
License: none is stated; free for research, cite the report.
Sizes: 50,000 training and 10,000 test images of 10 classes (airplane,
automobile, bird, cat, deer, dog, frog, horse, ship, truck), 5,000 and 1,000 of
each.

The files are the published ones of the binary version (`data_batch_1.bin` …
`data_batch_5.bin`, `test_batch.bin`: per image a byte for the label, then 1,024
bytes of each of red, green and blue), or the same batches as .npz files
(`train_batch_1.npz` … `train_batch_5.npz` with `x_train` uint8
`[10000, 32, 32, 3]` and `y_train`, and one `test*.npz` with `x_test` and
`y_test`, which may hold fewer images). Both give the images in the same order;
TensorFlow Datasets, used without a data folder, has another one.

The images stay uint8 in memory (184 MB); a client's become float32 when they
are asked for.
"""

from typing import Optional, Union

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import cifar_files, federated_dataset, partitioning

NUM_CLASSES = 10
FILES = cifar_files.CifarFiles(
  name='cifar10',
  num_classes=NUM_CLASSES,
  folders=('cifar-10-batches-bin', 'cifar10'),
  train_files=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
  test_file='test_batch.bin',
  train_npz_files=tuple(f'train_batch_{i}.npz' for i in range(1, 6)),
  images_per_file=10_000,
  num_test_images=10_000,
)
_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'


def load_cifar10_arrays(data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns CIFAR-10, `x` uint8 `[50000, 32, 32, 3]`.

  Args:
    data_dir: As for `load_cifar10`.

  Raises:
    ValueError: The files are missing or damaged.
    RunError: TensorFlow Datasets cannot get the data.
  """
  return cifar_files.load_arrays(FILES, data_dir, _URL)


def load_cifar10(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
) -> federated_dataset.FederatedDataset:
  """Returns CIFAR-10, dealt to clients.

  A folder of .npz files may lack test images; a warning then says how many
  there are.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    data_dir: Folder of the six .bin files or of the .npz files, or its parent
      if it is called `cifar-10-batches-bin` or `cifar10`; None for TensorFlow
      Datasets.
    seed: Of the partition, non-negative.

  Returns:
    Dataset with `x` float32 `[32, 32, 3]` in [0, 1] and `y` int32, 10 classes.

  Raises:
    ValueError: The files are missing or damaged, or the partition is
      impossible.
    RunError: TensorFlow Datasets cannot get the data.
  """
  return load_cifar10_arrays(data_dir).to_clients(
    num_clients, partition, seed=seed
  )
