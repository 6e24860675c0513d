import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl import tff_api as tff
from tff_pfl.datasets.sources import shakespeare

_PLAY = """HAMLET:
To be, or not to be,
that is the question.

Ghost:
Swear.

HAMLET:
O my prophetic soul!
"""
_LENGTH = 4


def _write(tmp_path, text=_PLAY, encoding='utf-8'):
  path = tmp_path / 'my_shakespeare.txt'
  path.write_text(text, encoding)
  return str(path)


def _play(sizes):
  """Returns speeches of roles A, B, …, whose letters tell their place."""
  letters = [chr(code) for code in range(33, 127)]
  speeches = [
    f'{chr(ord("A") + i)}:\n{"".join(letters[j % 94] for j in range(size))}'
    for i, size in enumerate(sizes)
  ]
  return '\n\n'.join(speeches)


_load = functools.partial(
  shared.load, 'shakespeare', sequence_length=_LENGTH, min_characters=25
)


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_speeches_of_a_role_are_joined_in_their_order(tmp_path, encoding):
  roles = shakespeare.read_roles(_write(tmp_path, encoding=encoding))
  hamlet = 'To be, or not to be,\nthat is the question.\nO my prophetic soul!'
  assert roles == {'HAMLET': hamlet, 'Ghost': 'Swear.'}


def test_characters_have_numbers_of_their_own():
  printable = ''.join(chr(code) for code in range(32, 127))
  codes = shakespeare.encode('\n' + printable)
  assert codes.tolist() == list(range(1, 97))
  assert shakespeare.encode('é–𝄞\t').tolist() == [97] * 4
  assert shakespeare.NUM_CHARACTERS == 98


def test_every_place_of_a_role_is_an_example_and_splits_do_not_overlap(
  tmp_path,
):
  _write(tmp_path, _play([50]))
  dataset = _load(tmp_path, 1)
  assert dataset.client_ids == ('A',)
  assert dataset.num_classes == 98
  assert dataset.element_spec == shared.spec(_LENGTH, x=tf.int32)
  # The letters' numbers count up: '!' is 3.
  train, test = dataset.train('A'), dataset.test('A')
  for part, first, count in ((train, 3, 40), (test, 43, 10)):
    assert part.x.dtype == part.y.dtype == np.int32
    assert part.y.tolist() == list(range(first + _LENGTH, first + count))
    np.testing.assert_array_equal(
      part.x, part.y[:, np.newaxis] + np.arange(-_LENGTH, 0)
    )


@pytest.mark.parametrize('stride', [3, 5])
def test_a_stride_leaves_examples_out_and_fewer_overlap(tmp_path, stride):
  _write(tmp_path, _play([90]))
  dataset = _load(tmp_path, 1, stride=stride)
  # No letter occurs twice in the text.
  examples = dataset.train('A')
  windows = np.column_stack([examples.x, examples.y])
  everything = _load(tmp_path, 1).train('A')
  np.testing.assert_array_equal(examples.x, everything.x[::stride])
  count = dataset.num_overlapping
  assert not set(windows[0]) & set(windows[count + 1])
  assert count == 0 or set(windows[0]) & set(windows[count])


def test_roles_with_little_text_are_left_out(tmp_path):
  _write(tmp_path, _play([25, 24, 100, 25]))
  assert _load(tmp_path, 3).client_ids == ('A', 'C', 'D')
  with pytest.raises(ValueError, match='at most 3, the number of speaking'):
    _load(tmp_path, 4)
  for client_id in 'ACD':
    assert _load(tmp_path, 3).num_test_examples(client_id) >= 1


def test_files_of_another_form_are_named(tmp_path):
  text = 'HAMLET:\nTo be\n\nor not\nto be'
  _write(tmp_path, text)
  match = "my_shakespeare.txt.*ROLE:.*found 'or not' in speech 2"
  with shared.one_line_error(match):
    _load(tmp_path, 1)
  _write(tmp_path, text + 'é', encoding='latin-1')
  with shared.one_line_error('to be a text file in UTF-8'):
    _load(tmp_path, 1)


def test_without_data_dir_the_roles_come_through_tff(monkeypatch):
  train, test = (
    shared.client_data({role: {'snippets': t} for role, t in texts.items()})
    for texts in (
      dict(
        ROMEO=[b'But, soft!', b'what light'],
        JULIET=[b'Ay me!'] * 5,
        PAGE=[b'x' * 40],
        MUTE=[b'Oh'],
      ),
      dict(ROMEO=[b'She speaks'], JULIET=[b'O'], NURSE=[b'y' * 40]),
    )
  )
  monkeypatch.setattr(
    tff.simulation.datasets.shakespeare, 'load_data', lambda: (train, test)
  )
  dataset = _load(None, 1)
  # Juliet's test text is too short, the others have one kind of text only.
  assert dataset.client_ids == ('ROMEO',)
  text = shakespeare.encode('But, soft!\nwhat light')
  examples = dataset.train('ROMEO')
  assert examples.x.dtype == examples.y.dtype == np.int32
  np.testing.assert_array_equal(examples.y, text[_LENGTH:])
  np.testing.assert_array_equal(examples.x[0], text[:_LENGTH])
  np.testing.assert_array_equal(examples.x[-1], text[-_LENGTH - 1 : -1])
  assert dataset.num_test_examples('ROMEO') == len('She speaks') - _LENGTH
  assert dataset.num_overlapping == _LENGTH
  assert dataset.class_counts('test').sum() == len('She speaks') - _LENGTH
  with pytest.raises(ValueError, match='at most 1, the number of speaking'):
    _load(None, 2)


def test_the_real_file_has_its_roles(real_data):
  sizes = dict(sequence_length=80, min_characters=1000)
  dataset = _load(real_data(), 141, **sizes)
  # As many of the 309 roles have 1,000 characters.
  assert dataset.num_clients == 141
  assert 'ROMEO' in dataset.client_ids
  examples = dataset.test('ROMEO')
  assert examples.x.shape == (len(examples.y), 80)
  # Never padding, never a character out of the ordinary.
  assert examples.x.min() >= 1 and examples.x.max() <= 96
  with pytest.raises(ValueError, match='at most 141, the number of speaking'):
    _load(real_data(), 142, **sizes)
