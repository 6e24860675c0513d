import calendar
import importlib
import sys

import pytest

from tff_pfl.system import user_modules


def test_modules_are_imported_once_by_name_or_path(tmp_path, monkeypatch):
  path = tmp_path / 'my_study_module.py'
  path.write_text('import calendar\ncalendar.counted.append(__name__)\n')
  monkeypatch.setattr(calendar, 'counted', [], raising=False)
  names = (str(path), 'tests.studies.stand_in')
  for _ in range(2):
    user_modules.load(names)
  del sys.modules[str(path)]
  assert calendar.counted == [str(path)]
  # It may have been imported by its name.
  monkeypatch.syspath_prepend(tmp_path)
  module = importlib.import_module('my_study_module')
  assert user_modules.load([str(path)]) == [module]
  del sys.modules['my_study_module']
  assert len(calendar.counted) == 2
  # One that cannot be imported is not taken for one that was.
  for _ in range(2):
    with pytest.raises(FileNotFoundError, match='absent_module.py'):
      user_modules.load([str(tmp_path / 'absent_module.py')])
