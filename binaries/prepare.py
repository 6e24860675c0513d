r"""Makes the .npz files that image sets are read from, of published files.

    python -m binaries.prepare --data_dir=DOWNLOADED --output_dir=DATA

Looks for published files in --data_dir, and in folders there of the names that
are in brackets, and writes NAME.npz of each set.

mnist (mnist_idx, mnist) and fashion_mnist (fashion_mnist_idx, fashion_mnist):
the four idx .gz files.

cifar10 (cifar-10-batches-bin, cifar10) and cifar100 (cifar-100-binary,
cifar100): the .bin files of the binary version; or train_batch_1.npz to 5, of
CIFAR-100 train.npz, with x_train, uint8 [n, 32, 32, 3], and y_train, and one
test*.npz with x_test and y_test, which may hold fewer images.

emnist_letters (gzip, emnist_letters) and emnist_byclass (gzip, emnist_byclass):
the four idx .gz files of each, emnist-letters-train-images-idx3-ubyte.gz and so
on. Images become upright, and the letters' labels begin at 0.

femnist (femnist): one *femnist*.npz with x, uint8 [n, 28, 28], black on white
as LEAF has it, y, and the writers, client_id.

mnist, mnist_m, svhn, usps, synth_digits (folders of these names), the domains
of digits5: one NAME.npz (or, of some of the images, NAME_subset.npz) with
x_train and x_test, uint8 [n, height, width] or [n, height, width, 3], y_train
and y_test. Of SVHN and SynthDigits also the published .mat files,
train_32x32.mat, synth_test_32x32.mat and so on.

The images keep their order. What was made before is left as it is.
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
  'The image sets to make (default: all that are there), of '
  f'{", ".join(image_sets.IMAGE_SETS)}.',
)
program.define_overwrite()
flags.adopt_module_key_flags(program)


def main() -> None:
  """Writes the files and prints what they hold."""
  for line in image_files.prepare(
    _DATA_DIR.value,
    _OUTPUT_DIR.value,
    _DATASETS.value,
    flags.FLAGS.overwrite,
  ):
    print(line, flush=True)


if __name__ == '__main__':
  program.run(main)
