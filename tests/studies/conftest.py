import pytest

from tests.studies import made_up_trials


@pytest.fixture(scope='session', name='directory')
def _directory(tmp_path_factory):
  """The folder of `found`."""
  return tmp_path_factory.mktemp('study')


@pytest.fixture(scope='session', name='found')
def _found(directory):
  """The results of `made_up_trials.tuned_study`, not to be changed."""
  study = made_up_trials.tuned_study()
  run = made_up_trials.Ran(made_up_trials.FAILING)
  with pytest.MonkeyPatch.context() as patches:
    made_up_trials.without_pictures(patches)
    return made_up_trials.run_study(study, directory, run, has_page=True)
