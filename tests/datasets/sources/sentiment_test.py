import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl.datasets.sources import vocabulary

_BY_USER = ('user', 'label', 'text')


def _write(path, rows, columns=('domain', 'label', 'text')):
  return shared.write_csv(path, columns, rows)


def _rows(clients=('books', 'music'), count=20):
  return [
    (client, i % 2, f'{client} text {i}, "good"\nor not')
    for client in clients
    for i in range(count)
  ]


_load = functools.partial(shared.load, 'sentiment')


def _texts(dataset):
  """Each example's words, of training and test."""
  return [
    row.tobytes()
    for client_id in dataset.client_ids
    for split in (dataset.train, dataset.test)
    for row in split(client_id).x
  ]


def test_domains_are_clients_with_texts_of_both_labels_held_out(tmp_path):
  path = _write(tmp_path / 'reviews.csv', _rows())
  dataset = _load(path, max_words=6)
  assert dataset.client_ids == ('books', 'music')
  assert dataset.num_classes == 2
  assert dataset.element_spec == shared.spec(6, x=tf.int32, domain=True)
  assert dataset.class_counts('train').tolist() == [[8, 8], [8, 8]]
  assert dataset.class_counts('test').tolist() == [[2, 2], [2, 2]]


def test_more_clients_than_domains_share_the_domains(tmp_path):
  path = _write(tmp_path / 'reviews.csv', _rows(count=30))
  dataset = _load(path, 5, vocabulary_size=100_000)
  assert (
    ' '.join(dataset.client_ids) == 'books_0 books_1 books_2 music_0 music_1'
  )
  totals = shared.all_labels(dataset)
  assert totals[:3].tolist() == [[5, 5]] * 3
  assert np.abs(totals[3:] - 7.5).max() < 1
  # Every text has one client: 'text' and 'good' are in all, the number is not.
  texts = _texts(dataset)
  assert len(set(texts)) == len(texts) == 60


def test_texts_have_the_domain_of_the_file_whoever_owns_them(tmp_path):
  rows = [(*row, f'u{i % 4}') for i, row in enumerate(_rows(count=40))]
  path = _write(
    tmp_path / 'reviews.csv', rows, ('domain', 'label', 'text', 'user')
  )
  dataset = _load(path, 4)
  assert dataset.client_ids == ('u0', 'u1', 'u2', 'u3')
  assert dataset.domain_names == ('books', 'music')
  totals = shared.all_domains(dataset)
  assert totals.tolist() == [[10, 10]] * 4
  first_words = [
    vocabulary.hashed(name, 10_000) for name in dataset.domain_names
  ]
  for client_id in dataset.client_ids:
    for part in (dataset.train(client_id), dataset.test(client_id)):
      np.testing.assert_array_equal(
        part.x[:, 0], np.take(first_words, part.domain)
      )


def test_texts_can_be_dealt_by_domain_without_repeats(tmp_path):
  rows = _rows(count=40)
  # The same text in another domain, twice.
  rows += [('music', *row[1:]) for row in rows[:3]] * 2
  path = _write(tmp_path / 'reviews.csv', rows)
  dataset = _load(
    path,
    4,
    partition='domain_mixture:0.5:20',
    vocabulary_size=100_000,
  )
  assert dataset.client_ids[0] == 'client_0'
  totals = shared.all_domains(dataset)
  assert totals.sum(axis=1).tolist() == [20] * 4
  texts = _texts(dataset)
  assert len(texts) == len(set(texts)) == 80


@pytest.mark.parametrize('labels', [('negative', 'positive'), ('2', '10')])
def test_labels_are_numbered_in_sorted_order(tmp_path, labels):
  rows = [('d', labels[i % 2], f'text {i} {i % 2}') for i in range(20)]
  dataset = _load(_write(tmp_path / 'reviews.csv', rows), 1)
  train, test = dataset.train('d'), dataset.test('d')
  assert dataset.num_classes == 2
  hashed_zero = {row[2] for row, y in zip(train.x, train.y) if y == 0}
  hashed_one = {row[2] for row, y in zip(test.x, test.y) if y == 1}
  assert len(hashed_zero) == len(hashed_one) == 1
  assert (hashed_zero, hashed_one) == (
    {vocabulary.hashed('0', 10_000)},
    {vocabulary.hashed('1', 10_000)},
  )


def test_users_are_a_seeded_choice_of_those_with_enough_texts(tmp_path):
  # Texts that a user has twice count once.
  rows = _rows(['u0'], 4) * 2 + _rows([f'u{i}' for i in range(1, 9)], 5)
  path = _write(tmp_path / 'sent140.csv', rows, _BY_USER)
  assert len({_load(path, 4, seed=seed).client_ids for seed in range(6)}) > 1
  data = _load(path, 8, min_texts=5)
  assert data.client_ids == tuple(f'u{i}' for i in range(1, 9))
  assert data.domain_names is None
  assert 'u0' in _load(path, 9, min_texts=4).client_ids
  with shared.one_line_error('at most 8, the number of users with at least 5'):
    _load(path, 9, min_texts=5)
  rows = _rows(['books'], 20) + _rows(['music'], 4)
  path = _write(tmp_path / 'reviews.csv', rows)
  # Domains with few texts are not divided.
  assert _load(path, min_texts=5).client_ids == ('books_0', 'books_1')
  with shared.one_line_error('at most 20, the number of texts'):
    _load(path, 21, min_texts=5)
  with shared.one_line_error('at most 0, the number of domains'):
    _load(path, min_texts=21)


@pytest.mark.parametrize(
  'columns, rows, match',
  [
    ('domain label', [('d', 1)], 'columns text, .*found domain, label'),
    ('text label', [('t', 1)], 'client, user or domain, found text'),
    ('text label user', [('a', 1, 'u')], 'two or more classes, found 1'),
    ('text label user', [('', 1, 'u')], "'text' to have a value in every"),
    (
      'text label user domain',
      [('a', 0, 'u', 'd'), ('b', 1, 'v', '')],
      "'domain' to have a value in every row, found none at index 1",
    ),
    *(
      (
        'text label user',
        [('a', 0, 'u'), ('b', 1, 'u'), ('c', label, 'u')],
        match,
      )
      for label, match in (
        ('', "'label' to have a value in every row, found none at index 2"),
        ('nan', "'label' to have a value in every row, found none at index 2"),
        ('inf', 'numbers up to .*, found inf'),
      )
    ),
  ],
)
def test_files_of_another_form_are_named(tmp_path, columns, rows, match):
  path = _write(tmp_path / 'reviews.csv', rows, columns.split())
  with shared.one_line_error(f'reviews.csv.*{match}'):
    _load(path)


def test_real_reviews_of_four_domains(real_data):
  dataset = _load(real_data(), 4)
  assert dataset.client_ids == ('books', 'dvd', 'electronics', 'kitchen')
  totals = shared.all_labels(dataset)
  # 1,000 of each label and domain, less the repeated ones.
  assert totals.min() > 950 and totals.max() <= 1000
  assert totals.sum() == 8000 - 147
