"""Installs TensorFlow Federated for the wheel of tff_pfl.

TFF and five packages that it imports require versions of 2023. Some of these no
longer exist, so no requirements list with TFF can be resolved. The packages run
with today's versions. This program therefore installs them without their
dependencies, with this Python's pip or, if there is none, with uv. The wheel of
tff_pfl installs everything else.

In the wheel this is the module `tff_pfl_setup` and the command `tff-pfl-setup`.
It runs before TFF is installed, so it imports only the standard library.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from typing import Optional

# The versions in `requirements.txt`.
PACKAGES = {
  'tensorflow-federated': '0.87.0',
  'tensorflow-privacy': '0.9.0',
  'dp-accounting': '0.6.0',
  'google-vizier': '0.1.24',
  'tensorflow-model-optimization': '0.8.1',
  'tensorflow-probability': '0.25.0',
}
# Packages that pip may have replaced when it installed the wheel.
_REPLACED = ('tensorflow', 'keras', 'numpy', 'protobuf')


def _version(package: str) -> Optional[str]:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _installer() -> list[str]:
  """The command that installs packages without their dependencies.

  Raises:
    FileNotFoundError: If there is neither pip nor uv.
  """
  if importlib.util.find_spec('pip') is not None:
    # TFF's wheel requires a Python before 3.12.
    return [
      *(sys.executable, '-m', 'pip', 'install', '--no-deps'),
      *('--ignore-requires-python', '--disable-pip-version-check'),
    ]
  for uv in ('uv', os.path.expanduser('~/.local/bin/uv')):
    if shutil.which(uv) is not None:
      # uv only checks the lowest Python version that a package supports.
      return [uv, 'pip', 'install', '--no-deps', '--python', sys.executable]
  raise FileNotFoundError(
    f'This Python, {sys.executable}, has no pip, and there is no uv on the '
    'PATH: install one of them.'
  )


def main() -> Optional[str]:
  """Installs the missing packages, and returns the text of an error if any."""
  argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  ).parse_args()
  missing = [
    f'{name}=={version}'
    for name, version in PACKAGES.items()
    if _version(name) != version
  ]
  if missing:
    try:
      command = _installer()
    except FileNotFoundError as error:
      return f'error: {error}'
    print('Installing', *missing, '…', flush=True)
    if subprocess.run([*command, *missing], check=False).returncode:
      return f'error: {command[0]} has failed; its lines above say why.'
  versions = [f'{name} {_version(name)}' for name in (*PACKAGES, *_REPLACED)]
  print(f'This environment has {", ".join(versions)}.')
  print(
    'If a notebook, for example on Colab, had other versions of these, they '
    'were replaced: restart its session.'
  )
  return None


if __name__ == '__main__':
  sys.exit(main())
