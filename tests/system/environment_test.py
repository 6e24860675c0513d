"""Tests of what the environment tells TensorFlow and XLA."""

import pytest

from tff_pfl.system import environment

_FOR_ONE_CORE = '--xla_cpu_enable_concurrency_optimized_scheduler'
_GRAPHS = '--xla_gpu_enable_command_buffer'


@pytest.mark.parametrize(
  'given', ['', '--xla_a=1', '--xla_b', f'--xla_a=1 {_FOR_ONE_CORE}=true']
)
def test_flags_are_added_to_those_of_the_user(monkeypatch, given):
  monkeypatch.setenv('XLA_FLAGS', given)
  environment.set_defaults()
  flags = environment.os.environ['XLA_FLAGS'].split()
  assert set(given.split()) <= set(flags)
  assert (f'{_FOR_ONE_CORE}=false' in flags) == (_FOR_ONE_CORE not in given)
  assert sum(flag.startswith(_FOR_ONE_CORE) for flag in flags) == 1
  (graphs,) = (flag for flag in flags if flag.startswith(_GRAPHS))
  assert 'WHILE' in graphs.split('=')[1].split(',')


def test_flags_of_a_file_are_read(monkeypatch, tmp_path):
  path = tmp_path / 'flags'
  path.write_text(f'--xla_a=1\n{_FOR_ONE_CORE}=true\n')
  monkeypatch.setenv('XLA_FLAGS', str(path))
  environment.set_defaults()
  flags = environment.os.environ['XLA_FLAGS'].split()
  assert flags[:2] == ['--xla_a=1', f'{_FOR_ONE_CORE}=true']
  assert flags[2].startswith(_GRAPHS)
  monkeypatch.setenv('XLA_FLAGS', str(tmp_path))
  with pytest.raises(ValueError, match='`XLA_FLAGS` to be flags or a file'):
    environment.set_defaults()


def test_programs_share_the_memory_of_a_gpu(monkeypatch):
  monkeypatch.delenv('TF_FORCE_GPU_ALLOW_GROWTH')
  environment.set_defaults()
  assert environment.os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] == 'true'
