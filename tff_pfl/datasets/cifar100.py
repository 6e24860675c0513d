"""CIFAR-100, 32x32 color pictures of 100 kinds of things.

Source: A. Krizhevsky, V. Nair, G. Hinton; A. Krizhevsky, Learning Multiple
Layers of Features from Tiny Images, technical report, University of Toronto,
2009. https://www.cs.toronto.edu/~kriz/cifar.html
License: none is stated; free for research, cite the report.
Sizes: 50,000 training and 10,000 test images of 100 classes (the "fine"
labels), 500 and 100 of each.

The files are the published ones of the binary version (`train.bin` and
`test.bin`: per image a byte for the coarse and one for the fine label, then
1,024 bytes of each of red, green and blue), or the same images as `train.npz`
with `x_train` uint8 `[50000, 32, 32, 3]` and `y_train`, and one `test*.npz`
with `x_test` and `y_test`, which may hold fewer images. TensorFlow Datasets,
used without a data folder, has the images in another order.

The images stay uint8 in memory (184 MB); a client's become float32 when they
are asked for.
"""

from typing import Optional, Union

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import cifar_files, federated_dataset, partitioning

NUM_CLASSES = 100
FILES = cifar_files.CifarFiles(
  name='cifar100',
  num_classes=NUM_CLASSES,
  folders=('cifar-100-binary', 'cifar100'),
  train_files=('train.bin',),
  test_file='test.bin',
  train_npz_files=('train.npz',),
  images_per_file=50_000,
  num_test_images=10_000,
  label_bytes=2,
)
_URL = 'https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz'


def load_cifar100_arrays(data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns CIFAR-100, `x` uint8 `[50000, 32, 32, 3]`.

  Args:
    data_dir: As for `load_cifar100`.

  Raises:
    ValueError: The files are missing or damaged.
    RunError: TensorFlow Datasets cannot get the data.
  """
  return cifar_files.load_arrays(FILES, data_dir, _URL)


def load_cifar100(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
) -> federated_dataset.FederatedDataset:
  """Returns CIFAR-100, dealt to clients.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    data_dir: Folder of the two .bin or the two .npz files, or its parent if it
      is called `cifar-100-binary` or `cifar100`; None for TensorFlow Datasets.
    seed: Of the partition, non-negative.

  Returns:
    Dataset with `x` float32 `[32, 32, 3]` in [0, 1] and `y` int32, 100 classes.

  Raises:
    ValueError: The files are missing or damaged, or the partition is
      impossible.
    RunError: TensorFlow Datasets cannot get the data.
  """
  return load_cifar100_arrays(data_dir).to_clients(
    num_clients, partition, seed=seed
  )
