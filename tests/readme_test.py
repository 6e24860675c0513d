"""The README's claims that can be run."""

import pathlib
import re
import subprocess
import sys

_README = pathlib.Path(__file__).parents[1] / 'README.md'


def _own_model_example():
  (code,) = re.findall(r'```python\n(.*?)```', _README.read_text(), re.S)
  return code


def test_own_model_example_is_short():
  assert len(_own_model_example().splitlines()) < 25


def test_own_model_example_trains(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  names = {}
  exec(compile(_own_model_example(), str(_README), 'exec'), names)
  assert names['summary']['num_rounds'] == 20
  # Three classes: far above chance.
  assert names['summary']['accuracy']['last'] > 0.7
  assert (tmp_path / 'my_run' / 'summary.json').is_file()
  assert 'last_10_mean' in capsys.readouterr().out
  (more,) = re.findall(r'```py\n(.*?)```', _README.read_text(), re.S)
  exec(compile(more, str(_README), 'exec'), names)
  assert names['probabilities'].shape == (150, 3)
  (domains,) = re.findall(r'```py domains\n(.*?)```', _README.read_text(), re.S)
  exec(compile(domains, str(_README), 'exec'), names)
  assert names['fed_dar'].model.domains.names == ('small', 'large')
  (production,) = re.findall(
    r'```py production\n(.*?)```', _README.read_text(), re.S
  )
  exec(compile(production, str(_README), 'exec'), names)
  assert names['form'].work.type_signature
  trained = list(names['models'].values().values())[-1]
  assert trained.round_number == 20


def test_library_and_programs_can_be_imported_from_any_folder(tmp_path):
  code = 'import tff_pfl, binaries'
  subprocess.run([sys.executable, '-I', '-c', code], cwd=tmp_path, check=True)
