"""What those sections of a comparison's page show that consist of pictures."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import NamedTuple, Optional

import markupsafe

from tff_pfl.experiments import figures, inline_svg, presentation
from tff_pfl.experiments import results as results_lib


class Picture(NamedTuple):
  """A picture and what stands above it.

  Attributes:
    title: Its title; empty for none.
    note: Its second line, less prominent; empty for none.
  """

  svg: markupsafe.Markup
  title: str = ''
  note: str = ''


class CurvesView(NamedTuple):
  """Accuracy by round.

  Attributes:
    overview: The methods that end highest; None for a single method.
    panels: One for each method.
  """

  overview: Optional[Picture]
  has_global_model: bool
  panels: tuple[Picture, ...]


def curves_view(results: results_lib.ComparisonResults) -> Optional[CurvesView]:
  """Accuracy by round, a panel for each method; None for regression."""
  methods = figures.with_curves(results.methods)
  if not methods:
    return None
  panel = figures.CurvePanel(methods)
  return CurvesView(
    overview=_overview(methods) if len(methods) > 1 else None,
    has_global_model=any(method.has_global_model for method in methods),
    panels=tuple(
      Picture(
        inline_svg.inline_svg(
          panel.show(method), f'Accuracy of {method.label} by round.', f'c{i}'
        ),
        method.label,
        _last_accuracies(method),
      )
      for i, method in enumerate(methods)
    ),
  )


def _overview(methods):
  """Those methods that end highest in one picture."""
  first = methods[: figures.MAX_OVERVIEW_METHODS]
  names = ', '.join(method.label for method in first)
  title = ''
  if len(first) < len(methods):
    title = f'The {len(first)} methods that end highest'
  return Picture(
    inline_svg.inline_svg(
      figures.curves_overview(first),
      f'Personal accuracy by round of {names}.',
      'curves',
    ),
    title,
  )


def _last_accuracies(method):
  """The accuracies that a method's curves end at, in words."""
  parts = []
  for name, metric in (
    ('personal', presentation.RANKING),
    ('global', 'global_accuracy'),
  ):
    spread = method.metrics.get(metric)
    if spread is not None:
      parts.append(f'{name} {presentation.percent(spread)}')
  return ', '.join(parts)


def distributions_view(
  results: results_lib.ComparisonResults,
) -> Optional[tuple[Picture, ...]]:
  """How accuracy is distributed over clients; None for regression."""
  groups = {
    **_boxes(results, 'clients', ''),
    **_boxes(results, 'new_clients', 'New clients. '),
  }
  if not groups:
    return None
  limits = figures.common_limits(
    values for rows in groups.values() for _, values in rows
  )
  return tuple(
    Picture(
      inline_svg.inline_svg(
        figures.box_panel(rows, limits),
        f'Distribution of accuracy over clients. {title}.',
        f'b{i}',
      ),
      title,
    )
    for i, (title, rows) in enumerate(groups.items())
  )


def _boxes(results, which, prefix):
  """By title of a panel its rows: labels and the clients' accuracies."""
  boxes = {}
  for _, title, methods in presentation.by_variant(results.methods):
    rows = [(m.label, _accuracies(getattr(m, which))) for m in methods]
    rows = [(label, values) for label, values in rows if values]
    if rows:
      boxes[prefix + title] = rows
  return boxes


class ChangesGroup(NamedTuple):
  """What one way to personalize changed.

  Attributes:
    title: The variant's title.
    unchanged: Labels of the methods of which no client changed.
    panels: One for each of the others.
    is_open: Whether the panels are to be seen at first.
  """

  title: str
  unchanged: tuple[str, ...]
  panels: tuple[Picture, ...]
  is_open: bool


def changes_view(
  results: results_lib.ComparisonResults,
) -> Optional[tuple[ChangesGroup, ...]]:
  """Clients before and after personalization; None for regression."""
  limits = figures.common_limits(
    values
    for method in results.methods
    for values in _before_and_after(method)
    if values
  )
  panel = figures.ScatterPanel(limits)
  keys = (f's{i}' for i in itertools.count())
  groups = []
  for variant, title, methods in presentation.by_variant(results.methods):
    pairs = [(method, *_before_and_after(method)) for method in methods]
    group = ChangesGroup(
      title,
      unchanged=tuple(
        method.label
        for method, before, after in pairs
        if before and before == after
      ),
      panels=tuple(
        _change_picture(panel, method, before, after, next(keys))
        for method, before, after in pairs
        if before != after
      ),
      is_open=variant == 'method',
    )
    if group.unchanged or group.panels:
      groups.append(group)
  return tuple(groups) or None


def _change_picture(panel, method, before, after, key):
  hurt = sum(a < b for b, a in zip(before, after))
  note = f'{hurt:,} of {len(before):,} hurt'
  if not method.has_global_model:
    note += '; no global model'
  return Picture(
    inline_svg.inline_svg(
      panel.show(before, after),
      f'Accuracy of clients before and after personalization, {method.label}.',
      key,
    ),
    method.label,
    note,
  )


class TestSizes(NamedTuple):
  """How many test examples clients have.

  Attributes:
    least: The fewest that a client has who has any.
    median: The median over clients that have any.
    most: The most that a client has.
    num_without: Clients that have none.
  """

  least: int
  median: float
  most: int
  num_without: int


class PartitionView(NamedTuple):
  """Who holds which training examples.

  Attributes:
    num_examples: Training examples of all clients together.
    num_clients: Clients, new ones included.
    seed: The seed of the partition.
    test_sizes: How many test examples clients have; None where no run of that
      seed came to its end.
  """

  num_examples: int
  num_clients: int
  seed: int
  test_sizes: Optional[TestSizes]
  picture: Picture


def partition_view(
  results: results_lib.ComparisonResults,
) -> Optional[PartitionView]:
  """Who holds which training examples; None where it is not known."""
  partition = results.partition
  if partition is None:
    return None
  return PartitionView(
    num_examples=sum(partition.num_train_examples),
    num_clients=len(partition.client_ids),
    seed=partition.seed,
    test_sizes=_test_sizes(results),
    picture=Picture(
      inline_svg.inline_svg(
        figures.partition_panel(partition),
        'Training examples by client and class.',
        'partition',
      )
    ),
  )


def _test_sizes(results):
  """Of the clients of the partition, as those were scored who have any."""
  sizes = {
    client.client: client.num_test_examples
    for method in results.methods
    for client in (*method.clients, *method.new_clients)
    if client.seed == results.partition.seed
  }
  if not sizes:
    return None
  return TestSizes(
    least=min(sizes.values()),
    median=statistics.median(sizes.values()),
    most=max(sizes.values()),
    num_without=len(results.partition.client_ids) - len(sizes),
  )


def _accuracies(clients):
  """The accuracies of the personal models, those that there are."""
  return [
    client.accuracy_after
    for client in clients
    if client.accuracy_after is not None
    and math.isfinite(client.accuracy_after)
  ]


def _before_and_after(method):
  """The accuracies of clients that have both, as two lists."""
  pairs = [
    (client.accuracy_before, client.accuracy_after)
    for client in method.clients
    if client.accuracy_before is not None and client.accuracy_after is not None
  ]
  pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
  return [before for before, _ in pairs], [after for _, after in pairs]
