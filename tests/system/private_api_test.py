import pathlib
import re

from tff_pfl.system import private_api

_PRIVATE_IMPORT = re.compile(
  r'^\s*(from|import) (keras|tensorflow|tensorflow_federated)\.', re.MULTILINE
)


def test_no_other_file_imports_what_is_private():
  root = pathlib.Path(private_api.__file__).parents[2]
  paths = [*root.glob('tff_pfl/**/*.py'), *root.glob('binaries/**/*.py')]
  actual = [p for p in paths if _PRIVATE_IMPORT.search(p.read_text())]
  assert actual == [pathlib.Path(private_api.__file__)]
