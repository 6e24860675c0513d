import contextlib
import dataclasses
from unittest import mock

import pytest
from matplotlib.figure import Figure

from binaries import papers
from binaries.papers.engine import claims, trials
from tests.papers import untrained


@pytest.mark.parametrize('name', papers.EXPERIMENTS)
def test_full_sizes_have_seeds_to_compare_with(name):
  for sizes in papers.EXPERIMENTS[name].full.values():
    assert sizes.num_seeds >= claims.MIN_SEEDS


@pytest.mark.parametrize(
  'entry, sizes',
  [
    pytest.param(entry, sizes, id=f'{entry.name}-{name}')
    for entry in papers.EXPERIMENTS.values()
    if entry.uses_datasets
    for name, sizes in {'fast': entry.fast, **entry.full}.items()
  ],
)
def test_every_method_can_be_run_on_every_dataset(entry, sizes, monkeypatch):
  monkeypatch.setattr(
    untrained.Context, 'load_arrays', lambda *_, **__: mock.MagicMock()
  )
  is_fast = sizes is entry.fast
  # Seeds differ in nothing else.
  sizes = dataclasses.replace(sizes, num_seeds=1)
  context = untrained.Context(
    sizes,
    lambda wanted: untrained.finished(0.5, 0.4, wanted.config.num_rounds),
    fast=is_fast,
  )
  try:
    table = context.measured(entry.measure)
    assert list(entry.claims(table, sizes))
    if is_fast:
      entry.draw(table, sizes, Figure())
  except untrained.Opened:
    pass
  configs = {wanted.name: wanted.config for wanted in context.trials}
  assert {config.dataset for config in configs.values()} == {sizes.dataset}
  for wanted in context.trials:
    # What is the same run in two places has the same settings.
    assert wanted.config == configs[wanted.name]


@pytest.mark.parametrize(
  'entry',
  [
    # The claims of the other one are of the outputs of a dense layer.
    entry
    for entry in papers.EXPERIMENTS.values()
    if entry.uses_datasets and entry.name != 'fedsplit_neurons'
  ],
  ids=lambda entry: entry.name,
)
def test_every_experiment_on_data_sets_trains_any_network(entry, monkeypatch):
  monkeypatch.setattr(
    untrained.Context, 'load_arrays', lambda *_, **__: mock.MagicMock()
  )
  settings = {'fast': True, 'num_seeds': 1, 'sizes': {'model': 'resnet_18'}}
  settings = trials.Settings('unused', **settings)
  context = untrained.Context(entry.sizes(settings), fast=True)
  with contextlib.suppress(untrained.Opened):
    context.measured(entry.measure)
  assert {config.model for config in context.configs} == {'resnet_18'}
  # Nothing of the experiment's own network.
  assert {
    name for config in context.configs for name in config.model_arguments
  } <= {'normalization'}
