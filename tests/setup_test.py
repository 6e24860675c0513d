"""Tests of the set-up: locks, the build of .venv, the wheel, imports.

The builds here run the real Makefile and the real build script on a copy of the
checkout, in a folder with spaces, with a stand-in for Python or uv that records
what it is asked to do instead of installing anything.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import jedi
import pytest
from packaging import markers, requirements, utils

import tff_pfl
from binaries import setup

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOCKS = [f'requirements{e}.txt' for e in ('', '-gpu', '-ray', '-docs')]
PYTHON_VERSIONS = ('3.11', '3.12', '3.13')
BUILD = '-m venv .venv'
# Answers the build script's probe with the real Python after `{change}`.
# Records other arguments; makes a .venv whose python is a copy of itself.
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then
  exec '{python}' -c 'import sys, platform; {change}; exec(sys.argv[1])' "$2"
fi
echo "$*" >>"{log}"
case "$*" in
  '-m venv '*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  'venv '*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *'--no-build-isolation'*) {install} ;;
esac
"""


def locked_versions(name: str, python_version: str) -> dict[str, str]:
  """The versions by package that a lock has, each with its hashes."""
  environment = markers.default_environment()
  environment.update(
    python_version=python_version, python_full_version=f'{python_version}.9'
  )
  versions = {}
  for line in (ROOT / name).read_text().replace('\\\n', ' ').splitlines():
    if not line.strip() or line.lstrip().startswith('#'):
      continue
    text, *hashes = line.split(' --hash=sha256:')
    assert hashes, f'{text} has no hash, or is an index or a path'
    entry = requirements.Requirement(text)
    if entry.marker is None or entry.marker.evaluate(environment):
      (specifier,) = entry.specifier
      assert specifier.operator == '=='
      versions[utils.canonicalize_name(entry.name)] = specifier.version
  return versions


@pytest.mark.parametrize('python_version', PYTHON_VERSIONS)
@pytest.mark.parametrize('lock', LOCKS)
def test_lock_pins_every_requirement_to_an_allowed_version(
  lock, python_version
):
  versions = locked_versions(lock, python_version)
  expected = (ROOT / lock).with_suffix('.in').read_text()
  if lock == 'requirements.txt':
    expected += (ROOT / 'overrides.txt').read_text()
  elif lock != 'requirements-docs.txt':
    # An extra has the versions of the lock that it is added to.
    base = locked_versions('requirements.txt', python_version)
    assert {name: base.get(name, v) for name, v in versions.items()} == versions
  for line in re.findall('^[^#\\n].*', expected, re.M):
    entry = requirements.Requirement(line)
    if entry.marker is None or entry.marker.evaluate():
      actual = versions[utils.canonicalize_name(entry.name)]
      assert entry.specifier.contains(actual), line


@pytest.mark.parametrize(
  'name, words',
  [
    ('CHANGELOG.md', '\n## {version}\n'),
    ('CITATION.cff', '\nversion: {version}\n'),
    ('docs/programs.md', '/tff_pfl-{version}-py3-none-any.whl'),
    ('.pre-commit-config.yaml', ' rev: v{ruff}\n'),
  ],
)
def test_versions_are_the_same_everywhere(name, words):
  ruff = locked_versions('requirements.txt', '3.12')['ruff']
  words = words.format(version=tff_pfl.__version__, ruff=ruff)
  assert words in (ROOT / name).read_text()


class Checkout:
  """A copy of the checkout's set-up files, and a PATH of chosen programs."""

  def __init__(self, folder: pathlib.Path):
    self.path = folder / 'a check out'
    self.bin = folder / 'bin'
    self.log = folder / 'log'
    self.bin.mkdir()
    shutil.copytree(ROOT / '.ci', self.path / '.ci')
    for name in ('Makefile', *LOCKS):
      shutil.copy(ROOT / name, self.path / name)
    for tool in (
      *('awk', 'cat', 'cp', 'cut', 'date', 'dirname', 'env', 'flock', 'grep'),
      *('ln', 'make', 'mkdir', 'mv', 'rm', 'sed', 'sh', 'sha256sum', 'sleep'),
    ):
      (self.bin / tool).symlink_to(shutil.which(tool))

  def add(self, name='python3.12', *, change='pass', install=':') -> None:
    """Adds a stand-in for Python or uv."""
    path = self.bin / name
    path.write_text(
      FAKE_PYTHON.format(
        python=sys.executable, log=self.log, change=change, install=install
      )
    )
    path.chmod(0o755)

  def make(self, *arguments: str) -> tuple[int, str, list[str]]:
    """The status, what it says, and what the stand-ins were asked to do."""
    result = subprocess.run(
      ['make', *arguments],
      cwd=self.path,
      env={'PATH': str(self.bin)},
      capture_output=True,
      text=True,
      timeout=60,
    )
    calls = self.log.read_text().splitlines() if self.log.exists() else []
    self.log.unlink(missing_ok=True)
    return result.returncode, result.stdout + result.stderr, calls


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
  return Checkout(tmp_path)


def test_build_installs_the_lock_once_and_after_a_change_again(checkout):
  checkout.add(install='sleep 0.3')
  # Targets at the same time, too.
  status, said, calls = checkout.make('-j4', 'train', 'test')
  assert status == 0, said
  assert 'with python3.12: about a minute' in said
  assert re.search(r'^Built .venv in \d+ s\.$', said, re.M)
  assert calls.count(BUILD) == 1
  first, second = [call for call in calls if ' pip ' in call]
  for call in (first, second):
    assert '--no-deps' in call and '--require-hashes' in call
  # What the lock's source packages are built with is locked as well.
  build_lock = (checkout.path / '.venv/build-lock.txt').read_text()
  assert re.findall('^[^ ]+==', build_lock, re.M) == ['setuptools==']
  assert first.endswith('-r .venv/build-lock.txt')
  assert second.endswith('--no-build-isolation -r requirements.txt')
  assert '-m binaries.train --flagfile=binaries/flagfiles/fed_rep.txt' in calls
  run = '-m pytest -n 2 --dist loadfile --no-loadscope-reorder'
  assert run in calls
  os.utime(checkout.path / 'requirements.txt')
  assert checkout.make('test') == (0, '', [run])
  with open(checkout.path / 'requirements.txt', 'a') as lock:
    lock.write('# changed')
  stale = checkout.path / '.venv/stale'
  stale.touch()
  assert checkout.make('venv')[2].count(BUILD) == 1
  assert not stale.exists()


@pytest.mark.parametrize('end', ['exit 1', 'kill -KILL $PPID'])
def test_build_that_failed_is_not_taken_for_ready(checkout, end):
  checkout.add(install=end)
  status, said, calls = checkout.make('train')
  assert status != 0
  assert ('Building .venv failed' in said) == (end == 'exit 1')
  assert 'binaries.train' not in calls[-1]
  checkout.add()
  assert checkout.make('venv')[2].count(BUILD) == 1


def test_extras_are_added_and_kept_until_they_are_refused(checkout):
  checkout.add()
  checkout.make('venv')
  for extra in ('ray', 'gpu'):
    _, _, (call,) = checkout.make('venv', f'{extra.upper()}=1')
    assert call.endswith(
      f'--ignore-requires-python -r requirements-{extra}.txt'
    )
  assert checkout.make('venv') == (0, '', [])
  with open(checkout.path / 'requirements-gpu.txt', 'a') as lock:
    lock.write('# changed')
  calls = checkout.make('venv')[2]
  assert calls.count(BUILD) == 1
  assert [call[-7:-4] for call in calls[-2:]] == ['gpu', 'ray']
  assert 'ray' not in str(checkout.make('venv', 'RAY=0')[2])
  assert (
    "`GPU` to be 0 or 1, found 'yes'" in checkout.make('venv', 'GPU=yes')[1]
  )


def test_docs_have_an_environment_of_their_own_and_clean_keeps_the_runs(
  checkout,
):
  checkout.add()
  checkout.add('find')
  _, _, (create, install, build) = checkout.make('docs')
  assert create == '-m venv .venv-docs'
  assert install.endswith('-r requirements-docs.txt')
  assert build == '-m mkdocs build --strict --quiet'
  assert checkout.make('docs')[2] == [build]
  checkout.make('venv')
  (checkout.path / 'runs').mkdir()
  assert checkout.make('clean')[0] == 0
  left = {path.name for path in checkout.path.iterdir()}
  assert 'runs' in left and not {'.venv', '.venv-docs'} & left


@pytest.mark.parametrize(
  'change, reason',
  [
    ('sys.version_info = (3, 14, 1)', 'is Python 3.14'),
    ('platform.machine = lambda: "aarch64"', 'is for cpython linux aarch64'),
    ('platform.libc_ver = lambda: ("glibc", "2.27")', 'runs on glibc 2.27; '),
    ('sys.modules["ensurepip"] = None', 'lacks venv (Debian, Ubuntu: apt'),
    ('sys.exit(1)', 'does not run'),
  ],
)
def test_unfit_python_is_named(checkout, change, reason):
  checkout.add('python3.12', change=change)
  status, said, calls = checkout.make('-j4', 'train', 'test')
  assert status != 0 and not calls
  assert said.count('tff_pfl needs Python 3.11 to 3.13') == 1
  assert f'\n  python3.12 {reason}' in said
  for hint in ('python3.12-venv', 'astral.sh/uv', 'PYTHON='):
    assert hint in said


def test_named_python_is_used_and_an_unfit_one_passed_over(checkout):
  checkout.add(change='sys.exit(1)')
  said = checkout.make('venv', 'PYTHON=python3.12')[1]
  assert 'PYTHON=python3.12 cannot be used: it does not run' in said
  checkout.add('python3')
  assert 'with python3:' in checkout.make('venv')[1]
  shutil.rmtree(checkout.path / '.venv')
  checkout.add()
  checkout.add('my python')
  assert 'with my python:' in checkout.make('venv', 'PYTHON=my python')[1]
  said = checkout.make('venv', 'PYTHON=other', 'GPU=1')[1]
  assert 'PYTHON=other cannot be used: it was not found.' in said


def test_uv_fetches_python_where_none_is_usable(checkout):
  checkout.add('uv')
  status, said, (create, first, second) = checkout.make('venv')
  assert status == 0, said
  assert create == 'venv --quiet --python 3.12 .venv'
  for call in (first, second):
    assert call.startswith('pip install --quiet --python .venv/bin/python ')
    assert '--no-deps --require-hashes' in call
  assert second.endswith('--no-build-isolation -r requirements.txt')


def test_help_is_the_default_and_lists_every_target(checkout):
  targets = re.findall(
    '^([a-z-]+):.*  ##', (ROOT / 'Makefile').read_text(), re.M
  )
  actual = re.findall('^  make ([a-z-]+)  +[A-Z]', checkout.make()[1], re.M)
  assert actual == targets


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> pathlib.Path:
  """The wheel of a copy of the checkout."""
  copy = tmp_path_factory.mktemp('wheel') / 'copy'
  no_caches = shutil.ignore_patterns('__pycache__')
  for name in ('tff_pfl', 'binaries', '.ci'):
    shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=no_caches)
  for name in ('LICENSE', 'Makefile', 'pyproject.toml', 'README.md'):
    shutil.copy(ROOT / name, copy)
  subprocess.run(
    ['make', 'wheel', '-o', 'venv', f'VENV_PYTHON={sys.executable}'],
    cwd=copy,
    check=True,
    capture_output=True,
    timeout=120,
  )
  (path,) = (copy / 'dist').iterdir()
  return path


def test_wheel_has_every_file_and_a_script_for_every_program(wheel):
  copy = wheel.parents[1]
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
  built = project['tool']['hatch']['build']['targets']['wheel']
  for name in built['exclude']:
    path = copy / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    packaged = {n for n in names if n.startswith('tff_pfl/')}
    (entry_points,) = (n for n in names if 'entry_points' in n)
    scripts = archive.read(entry_points).decode()
    beside = {
      name: archive.read(f'tff_pfl_{name}.py').decode()
      for name in ('repairs', 'setup')
    }
  assert packaged == {
    str(package / path.relative_to(copy / name))
    for name, package in (
      ('tff_pfl', pathlib.Path('tff_pfl')),
      ('binaries', pathlib.Path('tff_pfl/programs')),
    )
    for path in (copy / name).rglob('*.*')
  }
  # Nothing else is at the top of anybody's environment.
  assert f'tff_pfl-{tff_pfl.__version__}.dist-info/licenses/LICENSE' in names
  assert {name.partition('/')[0] for name in names} == {
    'tff_pfl',
    'tff_pfl_repairs.pth',
    'tff_pfl_repairs.py',
    'tff_pfl_setup.py',
    f'tff_pfl-{tff_pfl.__version__}.dist-info',
  }
  assert beside == {
    'repairs': (ROOT / 'tff_pfl/tff_repairs.py').read_text(),
    'setup': (ROOT / 'binaries/setup.py').read_text(),
  }
  assert 'tff-pfl-setup = tff_pfl_setup:main' in scripts.splitlines()
  programs = re.findall(
    '^tff-pfl-(.*) = tff_pfl.programs:run_script$', scripts, re.M
  )
  assert set(programs) == {
    path.stem
    for path in (copy / 'binaries').glob('*.py')
    if '  program.run_program(' in path.read_text()
  }


@pytest.mark.parametrize('python_version', PYTHON_VERSIONS)
def test_wheel_and_setup_ask_for_what_the_lock_has(python_version):
  versions = locked_versions('requirements.txt', python_version)
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  for text in project['dependencies']:
    requirement = requirements.Requirement(text)
    version = versions[utils.canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), requirement
  assert setup.PACKAGES.items() <= versions.items()
  # Those of TFF alone, and that stands in no other list.
  for page in ('docs/programs.md', 'pyproject.toml', 'README.md'):
    for name in setup.PACKAGES:
      assert f'{name}==' not in (ROOT / page).read_text()


@pytest.fixture(name='setup_program')
def _setup_program(tmp_path, monkeypatch, capfd):
  """Runs the program where a stand-in for uv, but no pip, is."""
  there = dict(setup.PACKAGES)
  uv = tmp_path / 'uv'
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setattr(setup, '_version', there.get)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(sys, 'argv', ['tff-pfl-setup'])

  def run(missing=None, status=0, has_uv=True):
    there.pop(missing, None)
    uv.write_text(f'#!/bin/sh\necho "uv $*"; exit {status}')
    uv.chmod(0o755 if has_uv else 0o600)
    return setup.main(), capfd.readouterr().out

  return run


def test_setup_installs_what_is_missing_without_resolving(setup_program):
  error, said = setup_program()
  assert error is None and 'uv' not in said
  assert 'tensorflow-federated 0.87.0' in said and 'protobuf' in said
  error, said = setup_program('tensorflow-privacy')
  assert error is None
  assert (
    f'uv pip install --no-deps --python {sys.executable} '
    'tensorflow-privacy==0.9.0\n'
  ) in said


def test_setup_that_fails_is_one_line(setup_program):
  error, _ = setup_program('dp-accounting', status=2)
  assert error == 'error: uv has failed; its lines above say why.'
  error, _ = setup_program(has_uv=False)
  assert error.startswith(f'error: This Python, {sys.executable}, has no pip')


@pytest.mark.slow
@pytest.mark.parametrize('tool', ['pip', 'uv'])
def test_readme_example_runs_where_the_wheel_is_installed(
  wheel, tmp_path, tool
):
  env = tmp_path / 'env'
  create = [sys.executable, '-m', 'venv', env]
  install = [env / 'bin/pip', 'install', wheel]
  if tool == 'uv':
    if not shutil.which('uv'):
      pytest.skip('needs uv')
    create.insert(3, '--without-pip')
    install = ['uv', 'pip', 'install', '--python', env / 'bin/python', wheel]
  for command in (create, install, [env / 'bin/tff-pfl-setup']):
    subprocess.run(command, check=True)
  (example,) = re.findall(
    '^```python\n(.*?)^```', (ROOT / 'README.md').read_text(), re.S | re.M
  )
  subprocess.run([env / 'bin/python', '-c', example], cwd=tmp_path, check=True)
  assert (tmp_path / 'my_run.png').is_file()
  for command in (
    [env / 'bin/tff-pfl-prepare'],
    [env / 'bin/python', '-m', 'tff_pfl.programs.prepare'],
  ):
    said = subprocess.check_output(
      [*command, '--help'], cwd=tmp_path, text=True
    )
    assert 'python -m tff_pfl.programs.prepare --data_dir' in said
    assert 'binaries' not in said


def run_python(code: str, *flags: str) -> tuple[str, str]:
  """What a program prints to stdout and stderr."""
  environment = {**os.environ}
  # The tests have it; see conftest.py.
  del environment['TF_CPP_MIN_LOG_LEVEL']
  result = subprocess.run(
    [sys.executable, *flags, '-c', code],
    capture_output=True,
    text=True,
    timeout=120,
    env=environment,
  )
  return result.stdout, result.stderr


def test_without_tensorflow_the_import_says_what_to_install():
  code = f'import sys; sys.path.append({str(ROOT)!r}); import tff_pfl'
  error = run_python(code, '-I', '-S')[1].splitlines()[-1]
  assert error.startswith('ImportError: tff_pfl needs TensorFlow 2.21 and')
  assert 'dependencies, then run `tff-pfl-setup` (docs/programs.md' in error


def test_names_of_the_library_are_there_and_editors_see_them():
  for name in tff_pfl.__all__:
    value = getattr(tff_pfl, name)
    assert getattr(value, '__name__', name).rpartition('.')[2] == name
  script = jedi.Script(
    'import tff_pfl as pfl\npfl.', project=jedi.Project(ROOT)
  )
  assert {*tff_pfl.__all__} <= {each.name for each in script.complete()}


def test_tensorflow_is_imported_when_it_is_needed():
  code = 'import sys, tff_pfl, binaries; print("tensorflow" in sys.modules)'
  # The packages are found from any folder.
  assert run_python(code, '-I') == ('False\n', '')


# As train_test sees of a program.
@pytest.mark.slow
def test_using_the_library_and_looking_for_devices_says_nothing():
  code = (
    'import tff_pfl as pfl; pfl.create_runtime; import tensorflow as tf;'
    'tf.config.list_logical_devices();'
    # With TF_USE_LEGACY_KERAS=1, as in all tests.
    'assert tf.keras.Model.__module__.startswith("tf_keras")'
  )
  assert run_python(code) == ('', '')
