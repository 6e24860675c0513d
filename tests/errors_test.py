import pytest

from tff_pfl import errors


@pytest.mark.parametrize(
  'path, words',
  [
    ('file/folder', 'a part of the path is a file; give another path'),
    ('file', 'give the path of a folder'),
    ('n' * 300, 'give a shorter path'),
  ],
)
def test_a_path_that_cannot_be_used_is_named_with_what_to_do(
  tmp_path, path, words
):
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(OSError) as error:
    (tmp_path / path).mkdir()
  reason = errors.reason(error.value)
  assert reason.startswith(f'Cannot use {tmp_path / path}: ')
  assert words in reason
  assert 'Errno' not in reason


@pytest.mark.parametrize(
  'error, reason',
  [
    (
      OSError(30, 'Read-only file system', '/mnt/out'),
      'Cannot use /mnt/out: Read-only file system; give a path on a disk that '
      'can be written to.',
    ),
    (FileNotFoundError('no digits'), 'no digits'),
  ],
)
def test_errors_of_the_system_say_what_to_do(error, reason):
  assert errors.reason(error) == reason


@pytest.mark.parametrize(
  'interval, ends',
  [('[0, 1]', (0, 1)), ('(0, 1]', (1,)), ('[0, 1)', (0,)), ('(0, 1)', ())],
)
def test_a_share_is_a_number_in_its_interval(interval, ends):
  for value in (*ends, 0.5):
    errors.expect_share('rate', value, interval)
  others = {0, 1, -0.1, 1.1, float('nan'), '0.5', None} - set(ends)
  for value in others:
    with pytest.raises(ValueError) as error:
      errors.expect_share('rate', value, interval)
    expected = f'Expected `rate` to be a number in {interval}, found {value!r}.'
    assert str(error.value) == expected
