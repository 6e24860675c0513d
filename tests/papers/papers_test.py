import contextlib
import dataclasses
from unittest import mock

import pytest
from matplotlib.figure import Figure

from binaries import papers
from binaries.papers.engine import claims, trials
from tests.papers import untrained

_ON_DATA_SETS = {
  name: entry
  for name, entry in papers.EXPERIMENTS.items()
  if entry.uses_datasets
}


@pytest.fixture(autouse=True)
def _no_data(monkeypatch):
  monkeypatch.setattr(
    untrained.Context, 'load_arrays', lambda *_, **__: mock.MagicMock()
  )


def test_full_sizes_have_seeds_to_compare_with():
  for entry in papers.EXPERIMENTS.values():
    for sizes in entry.full.values():
      assert sizes.num_seeds >= claims.MIN_SEEDS, entry.name


# The first data set is the experiment's own, the last one is the least alike.
@pytest.mark.parametrize(
  'name, place',
  [
    (name, place)
    for name, entry in _ON_DATA_SETS.items()
    for place in ('fast', 0, -1)[: 1 + min(2, len(entry.full))]
  ],
)
def test_every_method_can_be_run(name, place):
  entry = papers.EXPERIMENTS[name]
  is_fast = place == 'fast'
  sizes = entry.fast if is_fast else list(entry.full.values())[place]
  # Seeds differ in nothing else.
  sizes = dataclasses.replace(sizes, num_seeds=1)
  context = untrained.Context(
    sizes,
    lambda wanted: untrained.finished(
      0.5, 0.4, wanted.config.rounds.num_rounds
    ),
    fast=is_fast,
  )
  with contextlib.suppress(untrained.Opened):
    table = context.measured(entry.measure)
    assert list(entry.claims(table, sizes))
    if is_fast:
      entry.draw(table, sizes, Figure())
  configs = {wanted.name: wanted.config for wanted in context.trials}
  assert {config.data.name for config in configs.values()} == {sizes.dataset}
  for wanted in context.trials:
    # What is the same run in two places has the same settings.
    assert wanted.config == configs[wanted.name]


# The claims of `fedsplit_neurons` are of the outputs of a dense layer.
@pytest.mark.parametrize(
  'name', sorted({*_ON_DATA_SETS} - {'fedsplit_neurons'})
)
def test_every_experiment_on_data_sets_trains_any_network(name):
  entry = papers.EXPERIMENTS[name]
  settings = {'fast': True, 'num_seeds': 1, 'sizes': {'model': 'resnet_18'}}
  settings = trials.Settings('unused', **settings)
  context = untrained.Context(entry.sizes(settings), fast=True)
  with contextlib.suppress(untrained.Opened):
    context.measured(entry.measure)
  assert {config.model.name for config in context.configs} == {'resnet_18'}
  # Nothing of the experiment's own network.
  assert {
    name for config in context.configs for name in config.model.arguments
  } <= {'normalization'}
