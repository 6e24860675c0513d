"""Tests of the set-up: locks, Makefile, the build of .venv, and .ci/run.

The builds here run the real Makefile and the real build script on a copy of the
checkout, in a folder with spaces, with a stand-in for Python or uv that records
what it is asked to do instead of installing anything.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging import markers, requirements, utils

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOCKS = tuple(
  f'requirements{extra}.txt' for extra in ('', '-gpu', '-ray', '-docs')
)
PYTHON_VERSIONS = ('3.11', '3.12', '3.13')
TARGETS = (
  *('venv', 'train', 'test', 'test-slow', 'docs', 'docs-serve'),
  *('wheel', 'lint', 'lock', 'clean'),
)
# All that make and the build script call, besides a Python or uv.
TOOLS = (
  *('awk', 'cat', 'cp', 'cut', 'date', 'dirname', 'env', 'flock', 'grep', 'ln'),
  *('make', 'mkdir', 'mv', 'rm', 'sed', 'sh', 'sha256sum', 'sleep'),
)
FAST_TESTS = '-m pytest -n 2 --dist loadfile'
NO_PYTHON = 'tff_pfl needs Python 3.11 to 3.13'

# Records its arguments, answers the build script's probe with the real Python,
# and makes a .venv whose python is a copy of itself.
FAKE_PYTHON = """#!/bin/sh
case "$1" in
  -c) exec '{python}' "$@" ;;
esac
echo "$*" >>"$FAKE_LOG"
case "$*" in
  '-m venv '*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *'--no-build-isolation'*) {during_install} ;;
esac
"""

FAKE_UV = """#!/bin/sh
echo "$*" >>"$FAKE_LOG"
case "$1" in
  venv) mkdir -p .venv/bin; cp '{venv_python}' .venv/bin/python ;;
esac
"""

# A real Python after `{change}`, as the build script's probe sees it.
CHANGED_PYTHON = """#!/bin/sh
exec '{python}' -c 'import sys; {change}; exec(sys.argv[1])' "$2"
"""


def read_requirements(name: str) -> list[requirements.Requirement]:
  lines = (ROOT / name).read_text().splitlines()
  return [
    requirements.Requirement(line)
    for line in lines
    if line.strip() and not line.startswith('#')
  ]


def read_lock(name: str) -> list[requirements.Requirement]:
  """What a lock file asks for, each with its hashes."""
  text = (ROOT / name).read_text().replace('\\\n', ' ')
  entries = []
  for line in text.splitlines():
    if line.strip() and not line.lstrip().startswith('#'):
      requirement, *hashes = line.split(' --hash=sha256:')
      assert hashes, requirement
      assert all(re.fullmatch('[0-9a-f]{64}', h.strip()) for h in hashes)
      entries.append(requirements.Requirement(requirement))
  return entries


def locked_versions(name: str, python_version: str) -> dict[str, str]:
  environment = markers.default_environment()
  environment.update(
    python_version=python_version,
    python_full_version=python_version + '.9',
    sys_platform='linux',
    platform_machine='x86_64',
  )
  versions = {}
  for entry in read_lock(name):
    if entry.marker is None or entry.marker.evaluate(environment):
      (specifier,) = entry.specifier
      assert specifier.operator == '=='
      package = utils.canonicalize_name(entry.name)
      assert package not in versions, f'{package} is locked twice'
      versions[package] = specifier.version
  return versions


class Checkout:
  """A copy of the checkout's set-up files, and a PATH of chosen programs."""

  def __init__(self, folder: pathlib.Path):
    self.path = folder / 'a check out'
    self.bin = folder / 'bin'
    self.log = folder / 'log'
    self.bin.mkdir()
    for name in ('Makefile', *LOCKS):
      self.path.mkdir(exist_ok=True)
      shutil.copy(ROOT / name, self.path / name)
    shutil.copytree(ROOT / '.ci', self.path / '.ci')
    for tool in TOOLS:
      found = shutil.which(tool)
      if found is None:
        pytest.skip(f'{tool} is not installed')
      (self.bin / tool).symlink_to(found)

  def add_program(self, name: str, text: str) -> None:
    (self.bin / name).write_text(text)
    (self.bin / name).chmod(0o755)

  def add_python(
    self,
    name: str = 'python3.12',
    *,
    install: str = ':',
  ) -> None:
    text = FAKE_PYTHON.format(python=sys.executable, during_install=install)
    self.add_program(name, text)

  def run(self, *command: str) -> subprocess.CompletedProcess:
    environment = {
      'PATH': str(self.bin),
      'HOME': str(self.path.parent),
      'FAKE_LOG': str(self.log),
    }
    return subprocess.run(
      command,
      cwd=self.path,
      env=environment,
      capture_output=True,
      text=True,
      timeout=60,
    )

  def make(self, *arguments: str) -> subprocess.CompletedProcess:
    return self.run('make', *arguments)

  def calls(self) -> list[str]:
    """What the stand-ins were asked to do since the last call of this."""
    if not self.log.exists():
      return []
    lines = self.log.read_text().splitlines()
    self.log.unlink()
    return lines

  def change_lock(self, name: str = 'requirements.txt') -> None:
    with open(self.path / name, 'a') as file:
      file.write('# changed\n')


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
  return Checkout(tmp_path)


@pytest.fixture
def built(checkout: Checkout) -> Checkout:
  """A checkout whose .venv is built."""
  checkout.add_python()
  assert checkout.make('venv').returncode == 0
  checkout.calls()
  return checkout


def num_builds(calls: list[str]) -> int:
  return calls.count('-m venv .venv')


@pytest.mark.parametrize('python_version', PYTHON_VERSIONS)
@pytest.mark.parametrize(
  'wanted, lock',
  [
    ('requirements.in', 'requirements.txt'),
    ('overrides.txt', 'requirements.txt'),
    ('requirements-gpu.in', 'requirements-gpu.txt'),
    ('requirements-ray.in', 'requirements-ray.txt'),
    ('requirements-docs.in', 'requirements-docs.txt'),
  ],
)
def test_lock_pins_every_requirement_to_an_allowed_version(
  wanted, lock, python_version
):
  versions = locked_versions(lock, python_version)
  for requirement in read_requirements(wanted):
    if requirement.marker and not requirement.marker.evaluate():
      continue
    version = versions[utils.canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize('extra', ['gpu', 'ray'])
@pytest.mark.parametrize('python_version', PYTHON_VERSIONS)
def test_extras_have_the_versions_of_the_lock(extra, python_version):
  base = locked_versions('requirements.txt', python_version)
  lock = locked_versions(f'requirements-{extra}.txt', python_version)
  assert {name: base.get(name, found) for name, found in lock.items()} == lock


@pytest.mark.parametrize('name', LOCKS)
def test_locks_name_no_path_and_no_index_of_one_machine(name):
  foreign = re.compile(r'(^|[\s=\'"@])([/~]|file:|--.*index|--find-links)')
  lines = (ROOT / name).read_text().splitlines()
  assert [line for line in lines if foreign.search(line)] == []
  assert len(read_lock(name)) >= 10


def test_help_is_the_default_and_lists_every_target(checkout):
  result = checkout.make()
  assert result.returncode == 0
  for target in ('help', *TARGETS):
    assert re.search(rf'^  make {target}  +[A-Z]', result.stdout, re.M), target
  assert checkout.calls() == []


@pytest.mark.parametrize('target', TARGETS)
def test_every_target_can_be_printed_without_running(checkout, target):
  assert checkout.make('-n', target).returncode == 0
  assert not (checkout.path / '.venv').exists()


@pytest.mark.parametrize(
  'arguments, flags',
  [
    ([], '--flagfile=binaries/flagfiles/fed_rep.txt'),
    (['TRAIN_ARGS=--algorithm=fed_avg'], '--algorithm=fed_avg'),
  ],
)
def test_train_builds_the_venv_then_runs_the_job(checkout, arguments, flags):
  checkout.add_python()
  result = checkout.make('train', *arguments)
  assert result.returncode == 0, result.stderr
  calls = checkout.calls()
  assert num_builds(calls) == 1
  assert calls[-1] == f'-m binaries.train {flags}'


def test_build_installs_only_the_lock(checkout):
  checkout.add_python()
  result = checkout.make('venv')
  assert result.returncode == 0, result.stderr
  installs = [call for call in checkout.calls() if ' pip ' in call]
  assert len(installs) == 2
  for call in installs:
    assert '--no-deps' in call and '--require-hashes' in call
  # What the lock's source packages are built with is locked as well.
  build_lock = (checkout.path / '.venv/build-lock.txt').read_text()
  assert re.findall('^[^ ]+==', build_lock, re.M) == ['setuptools==']
  assert '--hash=' in build_lock
  assert installs[0].endswith('-r .venv/build-lock.txt')
  assert installs[1].endswith('--no-build-isolation -r requirements.txt')


def test_build_says_what_it_does_and_how_long_it_takes(checkout):
  checkout.add_python()
  result = checkout.make('venv')
  assert result.stdout == ''
  first, last = result.stderr.splitlines()
  assert 'python3.12' in first and 'about a minute' in first
  assert re.fullmatch(r'Built .venv in \d+ s\.', last)


def test_unchanged_lock_builds_nothing(built):
  for name in LOCKS:  # A newer file with the same content is no change.
    os.utime(built.path / name)
  result = built.make('test')
  assert built.calls() == [FAST_TESTS]
  assert result.stdout == result.stderr == ''


def test_changed_lock_rebuilds_once(built):
  stale = built.path / '.venv/stale'
  stale.touch()
  built.change_lock()
  built.make('venv')
  assert num_builds(built.calls()) == 1
  assert not stale.exists()
  built.make('venv')
  assert built.calls() == []


def test_changed_gpu_lock_leaves_a_venv_without_gpu_alone(built):
  built.change_lock('requirements-gpu.txt')
  built.make('venv')
  assert built.calls() == []


def test_failed_install_is_reported_and_not_taken_for_ready(checkout):
  checkout.add_python(install='exit 1')
  result = checkout.make('train')
  assert result.returncode != 0
  assert result.stderr.count('Building .venv failed') == 1
  assert not any('binaries.train' in call for call in checkout.calls())
  checkout.add_python()
  assert checkout.make('venv').returncode == 0
  assert num_builds(checkout.calls()) == 1


def test_killed_build_is_not_taken_for_ready(built):
  built.change_lock()
  built.add_python(install='kill -KILL $PPID')
  assert built.run('sh', '.ci/build_venv').returncode in (
    -signal.SIGKILL,
    128 + signal.SIGKILL,
  )
  assert (built.path / '.venv/bin/python').exists()
  built.calls()
  built.add_python()
  assert built.make('venv').returncode == 0
  assert num_builds(built.calls()) == 1


def test_docs_have_an_environment_of_their_own(checkout):
  checkout.add_python()
  result = checkout.make('docs')
  assert result.returncode == 0, result.stderr
  create, install, build = checkout.calls()
  assert create == '-m venv .venv-docs'
  assert install.endswith('-r requirements-docs.txt')
  assert '--no-deps' in install and '--require-hashes' in install
  assert build == '-m mkdocs build --strict --quiet'
  assert not (checkout.path / '.venv').exists()
  checkout.make('docs')
  assert checkout.calls() == [build]
  checkout.change_lock('requirements-docs.txt')
  checkout.make('docs', 'GPU=1')
  assert checkout.calls() == [create, install, build]


def test_parallel_targets_build_once(checkout):
  checkout.add_python(install='sleep 0.3')
  result = checkout.make('-j4', 'train', 'test', 'test-slow')
  assert result.returncode == 0, result.stderr
  calls = checkout.calls()
  assert num_builds(calls) == 1
  assert {FAST_TESTS, '-m pytest -m slow and not gpu'} <= set(calls)


@pytest.mark.parametrize('extra', ['gpu', 'ray'])
def test_extra_is_added_on_top_and_kept_until_refused(built, extra):
  lock = f'requirements-{extra}.txt'
  built.make('venv', f'{extra.upper()}=1')
  (call,) = built.calls()
  assert call.endswith(f'-r {lock}')
  assert '--no-deps' in call and '--require-hashes' in call
  built.make('train')
  assert [c for c in built.calls() if 'binaries' not in c] == []
  built.change_lock(lock)
  built.make('venv')
  calls = built.calls()
  assert num_builds(calls) == 1
  assert calls[-1].endswith(f'-r {lock}')
  built.make('venv', f'{extra.upper()}=0')
  calls = built.calls()
  assert num_builds(calls) == 1
  assert not any(lock in call for call in calls)


def test_extras_are_added_to_one_another(built):
  built.make('venv', 'RAY=1')
  built.calls()
  built.make('venv', 'GPU=1')
  (call,) = built.calls()
  assert call.endswith('-r requirements-gpu.txt')
  built.make('venv')
  assert built.calls() == []


def test_gpu_of_another_value_is_refused(checkout):
  checkout.add_python()
  result = checkout.make('venv', 'GPU=yes')
  assert result.returncode != 0
  assert "Expected `GPU` to be 0 or 1, found 'yes'." in result.stderr
  assert checkout.calls() == []


def test_without_python_one_message_says_what_to_install(checkout):
  result = checkout.run('sh', '.ci/build_venv')
  assert result.returncode == 1
  assert result.stdout == ''
  assert result.stderr.count(NO_PYTHON) == 1
  for hint in ('python3.12-venv', 'astral.sh/uv', 'PYTHON='):
    assert hint in result.stderr
  assert len(result.stderr.splitlines()) <= 10


def test_without_python_make_stops_with_that_message_once(checkout):
  message = checkout.run('sh', '.ci/build_venv').stderr
  result = checkout.make('-j4', 'train', 'test')
  assert result.returncode != 0
  assert result.stdout == ''
  # make adds the line in which it names the failed target and its status 1.
  start, end = result.stderr.split(message)
  assert start == ''
  assert re.fullmatch(r'make: \*\*\* \[.*venv\] Error 1\n', end)


def test_python_that_does_not_run_is_passed_over(checkout):
  checkout.add_program('python3.12', '#!/bin/sh\necho broken >&2\nexit 127\n')
  checkout.add_python('python3.11')
  result = checkout.make('venv')
  assert result.returncode == 0, result.stderr
  assert 'with python3.11:' in result.stderr
  assert 'broken' not in result.stderr


@pytest.mark.parametrize(
  'change, reason',
  [
    ('sys.version_info = (3, 14, 1)', 'is Python 3.14'),
    ('sys.maxsize = 2**31 - 1', 'is a 32-bit build'),
    (
      'import platform; platform.machine = lambda: "aarch64"',
      'is for linux aarch64',
    ),
    (
      'import platform; platform.libc_ver = lambda: ("glibc", "2.27")',
      'runs on glibc 2.27; glibc 2.31 or newer is needed',
    ),
    (
      'sys.version_info = (3, 12, 3); sys.modules["ensurepip"] = None',
      'lacks venv (Debian, Ubuntu: apt install python3.12-venv)',
    ),
    (
      'import ensurepip; ensurepip.version = lambda: "20.0.2"',
      'brings pip 20.0.2; 20.3 or newer is needed',
    ),
  ],
)
def test_unfit_python_is_named_with_the_reason(checkout, change, reason):
  text = CHANGED_PYTHON.format(python=sys.executable, change=change)
  checkout.add_program('python3.12', text)
  result = checkout.run('sh', '.ci/build_venv')
  assert result.returncode == 1
  assert f'\n  python3.12 {reason}\n' in result.stderr
  assert result.stderr.count(NO_PYTHON) == 1


def test_named_python_is_used(checkout):
  checkout.add_python('python3.12')
  checkout.add_python('my python')
  result = checkout.make('venv', 'PYTHON=my python')
  assert result.returncode == 0, result.stderr
  assert 'with my python:' in result.stderr


@pytest.mark.parametrize(
  'exists, reason',
  [(True, 'it does not run'), (False, 'it was not found')],
)
def test_named_python_that_is_unfit_is_refused(checkout, exists, reason):
  checkout.add_python('python3.12')
  if exists:
    checkout.add_program('other', '#!/bin/sh\nexit 1\n')
  result = checkout.make('venv', 'PYTHON=other')
  assert result.returncode != 0
  assert f'PYTHON=other cannot be used: {reason}.' in result.stderr
  assert checkout.calls() == []


@pytest.mark.parametrize('folder', [None, '.local/bin'])
def test_uv_fetches_python_where_none_is_usable(checkout, folder):
  checkout.add_python('venv-python')
  text = FAKE_UV.format(venv_python=checkout.bin / 'venv-python')
  checkout.add_program('uv', text)
  if folder is not None:  # Where uv's installer puts it, not yet on PATH.
    (checkout.path.parent / folder).mkdir(parents=True)
    shutil.move(checkout.bin / 'uv', checkout.path.parent / folder)
  result = checkout.make('venv')
  assert result.returncode == 0, result.stderr
  create, first, second = checkout.calls()
  assert create == 'venv --quiet --python 3.12 .venv'
  for call in (first, second):
    assert call.startswith('pip install --quiet --python .venv/bin/python ')
    assert '--no-deps --require-hashes' in call
  assert second.endswith('--no-build-isolation -r requirements.txt')


def test_clean_removes_the_venv_and_keeps_the_runs(built):
  built.add_program('find', '#!/bin/sh\n')
  (built.path / 'runs').mkdir()
  assert built.make('clean').returncode == 0
  assert not (built.path / '.venv').exists()
  assert (built.path / 'runs').exists()


@pytest.mark.parametrize('has_data', [False, True])
@pytest.mark.parametrize('data_dir', [None, 'elsewhere'])
def test_ci_run_tests_with_the_data_set_or_beside_the_checkout(
  checkout, has_data, data_dir
):
  """.ci/run passes on the status of a make that prints what it is given."""
  (checkout.bin / 'make').unlink()
  checkout.add_program(
    'make',
    '#!/bin/sh\necho "$PWD|$*|${TFF_PFL_DATA_DIR-unset}"\nexit 7\n',
  )
  (checkout.bin / 'bash').symlink_to(shutil.which('bash'))
  beside = checkout.path.parent / 'shared' / 'data'
  if has_data:
    beside.mkdir(parents=True)
  given = {'TFF_PFL_DATA_DIR': data_dir} if data_dir else {}
  result = subprocess.run(
    [checkout.path / '.ci/run'],
    cwd=checkout.bin,
    env={'PATH': str(checkout.bin), **given},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert result.returncode == 7
  expected = data_dir or (beside if has_data else 'unset')
  assert result.stdout == f'{checkout.path}|test RAY=1|{expected}\n'


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> pathlib.Path:
  """The wheel of a copy of the checkout."""
  copy = tmp_path_factory.mktemp('wheel')
  no_caches = shutil.ignore_patterns('__pycache__')
  for name in ('tff_pfl', 'binaries', '.ci'):
    shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=no_caches)
  for name in ('Makefile', 'pyproject.toml', 'README.md'):
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
  files = {
    str(path.relative_to(copy))
    for name in ('tff_pfl', 'binaries')
    for path in (copy / name).rglob('*.*')
  }
  with zipfile.ZipFile(wheel) as archive:
    assert files <= set(archive.namelist())
    (entry_points,) = [n for n in archive.namelist() if 'entry_points' in n]
    scripts = archive.read(entry_points).decode()
    repairs = archive.read('tff_pfl_repairs.py').decode()
    assert 'tff_pfl_repairs.pth' in archive.namelist()
  assert repairs == (ROOT / 'tff_pfl/tff_repairs.py').read_text()
  assert set(
    re.findall('^tff-pfl-(.*) = binaries:run_script$', scripts, re.M)
  ) == {
    path.stem
    for path in (ROOT / 'binaries').glob('*.py')
    if '  program.run(' in path.read_text()
  }


def lines_for_pip() -> list[str]:
  """The two lines of docs/programs.md that install the wheel."""
  text = (ROOT / 'docs/programs.md').read_text().replace('\\\n', ' ')
  first, second = re.findall('^pip install .*', text, re.M)
  return [first, second]


@pytest.mark.parametrize('python_version', PYTHON_VERSIONS)
def test_lines_for_pip_allow_what_the_lock_has(python_version):
  versions = locked_versions('requirements.txt', python_version)
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  _, second = lines_for_pip()
  pinned = [word for word in second.split() if '==' in word]
  assert pinned[0].startswith('tensorflow-federated')
  for text in (*project['dependencies'], *pinned):
    requirement = requirements.Requirement(text)
    version = versions[utils.canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), requirement


@pytest.mark.slow
def test_readme_example_runs_where_pip_installed_the_wheel(wheel, tmp_path):
  subprocess.run([sys.executable, '-m', 'venv', tmp_path / 'env'], check=True)
  for line in lines_for_pip():
    pip, *arguments = line.replace('tff_pfl-*.whl', str(wheel)).split()
    subprocess.run([tmp_path / 'env/bin' / pip, *arguments], check=True)
  (example,) = re.findall(
    '^```python\n(.*?)^```', (ROOT / 'README.md').read_text(), re.S | re.M
  )
  result = subprocess.run(
    [tmp_path / 'env/bin/python', '-c', example],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  assert "'best'" in result.stdout


def run_python(
  code: str, *flags: str, **variables: str
) -> subprocess.CompletedProcess:
  environment = {**os.environ}
  # The tests have it; see conftest.py.
  del environment['TF_USE_LEGACY_KERAS']
  return subprocess.run(
    [sys.executable, *flags, '-c', code],
    capture_output=True,
    text=True,
    timeout=120,
    env={**environment, **variables},
  )


def test_without_tensorflow_the_import_says_what_to_install():
  code = f'import sys; sys.path.append({str(ROOT)!r}); import tff_pfl'
  error = run_python(code, '-I', '-S').stderr.splitlines()[-1]
  assert error.startswith('ImportError: tff_pfl needs TensorFlow 2.21 and')
  assert 'docs/programs.md' in error


def test_tff_may_be_imported_first_and_tf_keras_stays_keras_3():
  result = run_python(
    'import importlib.util; importlib.util.find_spec("tensorflow_federated")\n'
    'import tensorflow_federated as tff, tff_pfl.runtime\n'
    'tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 9, 1.0)\n'
    'import os, tensorflow as tf\n'
    'print(tf.keras.Model.__module__, os.environ.get("TF_USE_LEGACY_KERAS"))'
  )
  assert re.fullmatch(r'keras\.src\.\S+ None\n', result.stdout), result.stderr


def test_using_the_library_and_looking_for_devices_says_nothing():
  result = run_python(
    'import sys, tff_pfl as pfl\n'
    'assert "tensorflow" not in sys.modules\n'
    'pfl.create_runtime\n'
    'import tensorflow as tf\n'
    'tf.config.list_logical_devices()\n'
    'assert tf.keras.Model.__module__.startswith("tf_keras")\n',
    TF_USE_LEGACY_KERAS='1',
  )
  assert (result.stdout, result.stderr) == ('', '')
