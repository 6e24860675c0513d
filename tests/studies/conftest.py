import pytest

from tests.comparisons import made_up_trials
from tff_pfl.comparisons import comparison_runner, trial


@pytest.fixture(scope='session', name='directory')
def _directory(tmp_path_factory):
  """The folder of `found`."""
  return str(tmp_path_factory.mktemp('comparison'))


@pytest.fixture(scope='session', name='found')
def _found(directory):
  """The results of `made_up_trials.comparison`, not to be changed."""
  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(trial, 'run', made_up_trials.run_but_one)
    return comparison_runner.compare(
      made_up_trials.comparison(),
      directory,
      num_processes=0,
      show_progress=False,
    )
