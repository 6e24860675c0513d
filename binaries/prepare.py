r"""Converts published image datasets to the .npz files that programs read.

    python -m binaries.prepare --data_dir=DOWNLOADED --output_dir=DATA

The program looks for published files in folders of --data_dir that are named
after the set or as in brackets below, then in --data_dir itself. It writes
NAME.npz for each set.

mnist (mnist_idx) and fashion_mnist (fashion_mnist_idx): the four idx .gz files.
They must be in such a folder.

cifar10 (cifar-10-batches-bin) and cifar100 (cifar-100-binary): the .bin files
of the binary version, or .npz files. train_batch_1.npz to train_batch_5.npz
(for CIFAR-100 train.npz) have x_train, uint8 [n, 32, 32, 3], and y_train.
test*.npz has x_test and y_test, which may hold fewer images.

emnist_letters (gzip) and emnist_byclass (gzip): the four idx .gz files of each,
emnist-letters-train-images-idx3-ubyte.gz and so on. They must be in such a
folder. Images are turned upright, and the letters' labels begin at 0.

femnist: femnist_*.npz or femnist.npz with x (uint8 [n, 28, 28], black on white
as in LEAF), y and client_id (the writers).

mnist, fashion_mnist, mnist_m, svhn, usps, synth_digits: NAME_subset.npz (some
of the images) or NAME.npz with x_train and x_test, uint8 [n, height, width] or
[n, height, width, 3], y_train and y_test. For SVHN and SynthDigits, the
published .mat files (train_32x32.mat, synth_test_32x32.mat and so on) come
first.

If several of these forms exist, the program reads the first one. If several
files match a pattern, it reads the first by name. The images keep their order.
An existing NAME.npz stays unchanged unless --overwrite is given. A file that
the program reads is never replaced, and needs another --output_dir.
"""

from absl import flags

from tff_pfl.datasets.sources import image_sets

from . import image_files, program

_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Folder of the published files.', required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder for the .npz files, the --data_dir of the other programs (default: '
  "this program's --data_dir).",
)
_DATASETS = flags.DEFINE_list(
  'datasets',
  [],
  'The image sets to convert (default: all whose published files exist), among '
  f'{", ".join(image_sets.IMAGE_SETS)}.',
)
program.define_overwrite()
flags.adopt_module_key_flags(program)


def main() -> None:
  """Writes the files and prints a line about each."""
  for line in image_files.prepare(
    _DATA_DIR.value, _OUTPUT_DIR.value, _DATASETS.value, flags.FLAGS.overwrite
  ):
    print(line, flush=True)


if __name__ == '__main__':
  program.run_program(main)
