"""Sums up a run: figures over rounds, result files, a table on the screen."""

import json
import math
import numbers
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import pandas as pd
import tabulate

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.runs import value_codec
from tff_pfl.system import folders

_Path = Union[str, 'os.PathLike[str]']
_HEADING_WIDTH = 8


def over_rounds(
  rounds: Sequence[int],
  values: Sequence[Optional[float]],
  final_round: int,
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
) -> dict[str, Optional[float]]:
  """Sums up a metric over the rounds of training.

  The figures answer different questions, so each has its name: the mean over
  the last rounds is the one to compare methods by; the best one is chosen
  with the test data and flatters.

  Args:
    rounds: The rounds after which there was an evaluation, ascending.
    values: The metric at each; None where there is none.
    final_round: The last round of training.
    metric: Metric of the values, with the direction that is better.

  Returns:
    A dict, with None for figures that no evaluation tells:
      last_10_mean: Mean over the evaluations of the last 10 rounds of training,
        those after round `final_round` - 10.
      num_last_10: Number of these evaluations, 10 at most.
      best: The best value.
      best_round: The first round with that value.
      best_10_mean: Best mean over ten consecutive rounds, all evaluated.
      last: The value of the last evaluation.
  """
  known = [(r, float(v)) for r, v in zip(rounds, values) if v is not None]
  recent = [v for r, v in known if r > final_round - 10]
  comparable = [(v, r) for r, v in known if not math.isnan(v)]
  best, best_round = max(
    comparable,
    key=lambda pair: (metric.merit(pair[0]), -pair[1]),
    default=(None, None),
  )
  by_round = dict(known)
  tens = ([by_round.get(r - i) for i in range(10)] for r in by_round)
  means = (math.fsum(ten) / 10 for ten in tens if None not in ten)
  return {
    'last_10_mean': math.fsum(recent) / len(recent) if recent else None,
    'num_last_10': len(recent),
    'best': best,
    'best_round': best_round,
    'best_10_mean': max(
      (mean for mean in means if not math.isnan(mean)),
      key=metric.merit,
      default=None,
    ),
    'last': known[-1][1] if known else None,
  }


def json_text(value: Any, indent: Optional[int] = None) -> str:
  """Returns a value that `value_codec.to_json` takes as strict JSON.

  JSON has no NaN and no infinities; these become null.

  Args:
    indent: Spaces of indentation; None for a single line.
  """
  return json.dumps(
    _finite(value_codec.to_json(value)),
    indent=indent,
    ensure_ascii=False,
    allow_nan=False,
  )


def write_json(path: _Path, value: Any) -> None:
  """Writes a value that `json_text` takes as a `folders.atomic_file`."""
  text = json_text(value, indent=2)
  with folders.atomic_file(path) as file:
    file.write(text + '\n')


def read_json(path: _Path) -> Any:
  """The value in a JSON file.

  Raises:
    RunError: If it cannot be read.
  """
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file)
  except (OSError, ValueError) as error:
    raise errors.RunError(f'Cannot read {path}: {error}.') from error


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """A data frame of rows.

  Args:
    rows: Rows, whose keys may differ. The columns are the keys of all rows in
      the order of their first appearance, those of nested mappings joined by
      "/"; None is a missing value.
  """
  rows = [{n: v for n, v in flat(row).items() if v is not None} for row in rows]
  table = pd.DataFrame(rows)
  for name in table:
    known = [row[name] for row in rows if name in row]
    if len(known) < len(rows) and all(type(value) is int for value in known):
      # Not floats, for what is missing.
      table[name] = table[name].astype('Int64')
  return table


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
  """A row with the names of `frame`, as JSON types.

  Empty lists, which parts of a process without metrics report, are left out.
  """
  items = value_codec.flatten(value_codec.to_json(row)).items()
  return {name: value for name, value in items if value != []}


def tidy(scores: pd.DataFrame) -> pd.DataFrame:
  """Scores of clients in tidy form, one number a row.

  Args:
    scores: Scores as `Run.scores` gives them, with any further columns.

  Returns:
    These columns but those of scores, and instead of these `domain` (None for
    all of a client's examples), `when` ('before' or 'after' personalization),
    `metric` and `value`.
  """
  pattern = r'(?:domains/(?P<domain>.*)/)?(?P<when>before|after)/(?P<metric>.*)'
  names = [name for name in scores if re.fullmatch(pattern, name)]
  if not names:
    return pd.DataFrame(columns=['domain', 'when', 'metric', 'value'])
  others = [
    name
    for name in scores
    if name not in names and not name.startswith('domains/')
  ]
  long = scores.melt(others, names, var_name='name')
  parts = long['name'].str.extract(f'^{pattern}$')
  table = pd.concat([long[others], parts, long['value']], axis=1)
  # A client has no examples of some domains.
  has_none = table['domain'].notna() & table['value'].isna()
  return table[~has_none].reset_index(drop=True)


def write_csv(path: _Path, table: pd.DataFrame) -> None:
  """Writes a data frame, without its index, as a `folders.atomic_file`."""
  with folders.atomic_file(path) as file:
    table.to_csv(file, index=False)


def format_table(rows: Iterable[Sequence[Any]], headers: Sequence[str]) -> str:
  """Returns a table for the screen.

  Floats are given with four significant digits (from 10,000 on as whole
  numbers), None as a dash. Columns of numbers are aligned right, others left.
  """
  rows = [list(row) for row in rows]
  alignment = [
    'right' if _is_numeric([row[i] for row in rows]) else 'left'
    for i in range(len(headers))
  ]
  cells = [[format_cell(cell) for cell in row] for row in rows]
  return tabulate.tabulate(
    cells,
    headers=list(headers),
    tablefmt='simple',
    disable_numparse=True,
    # Without rows there is nothing to align, which tabulate does not expect.
    colalign=alignment if rows else None,
  )


def format_frame(table: pd.DataFrame, width: int = _HEADING_WIDTH) -> str:
  """Returns a data frame without its index as `format_table` does.

  Headings are broken at spaces, to lines of a width.
  """
  return format_table(
    table.itertuples(index=False),
    [
      textwrap.fill(heading, width, break_long_words=False)
      for heading in table.columns
    ],
  )


def _is_numeric(cells: Sequence[Any]) -> bool:
  """Returns True if a column holds numbers, and not nothing but None."""
  given = [cell for cell in cells if cell is not None]
  return bool(given) and all(
    isinstance(cell, numbers.Number) and not isinstance(cell, bool)
    for cell in given
  )


def format_cell(cell: Any) -> str:
  """Returns the text of a cell of `format_table`."""
  if cell is None:
    return '–'
  if isinstance(cell, numbers.Real) and not isinstance(cell, numbers.Integral):
    cell = float(cell)
    if not math.isfinite(cell):
      return str(cell)
    # From here on four digits would round to 10,000 and more.
    if 9999.5 <= abs(cell) < 1e15:
      return f'{cell:.0f}'
    # "#" keeps the zeros at the end, so that a column lines up.
    return f'{cell:#.4g}'.rstrip('.')
  return str(cell)


def _finite(value: Any) -> Any:
  """Returns a JSON value with None in place of NaN and infinities."""
  if isinstance(value, dict):
    return {key: _finite(item) for key, item in value.items()}
  if isinstance(value, list):
    return [_finite(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
