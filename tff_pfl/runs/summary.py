"""Figures over rounds, and results as JSON, data frames, CSV and tables."""

import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd
import tabulate

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.runs import value_codec
from tff_pfl.system import folders

_Path = Union[str, 'os.PathLike[str]']


def over_rounds(
  rounds: Sequence[int],
  values: Sequence[Optional[float]],
  final_round: int,
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
) -> dict[str, Optional[float]]:
  """Summarizes a metric over the rounds of training.

  Args:
    rounds: The evaluated rounds, ascending.
    values: The metric in each of these rounds, or None.
    final_round: The last round of training.
    metric: Metric of the values, which knows whether higher is better.

  Returns:
    A dict, with None for figures that no evaluation gives:
      last_10_mean: Mean over the evaluations of the last 10 rounds of training,
        after round `final_round` - 10. Use this figure to compare methods.
      num_last_10: Number of these evaluations, at most 10.
      best: The best value, which is optimistic because it is chosen with test
        data.
      best_round: The first round with that value.
      best_10_mean: The best mean over ten consecutive rounds, all evaluated.
      last: The value of the last evaluation.
  """
  known = {r: float(v) for r, v in zip(rounds, values) if v is not None}
  recent = [v for r, v in known.items() if r > final_round - 10]
  best_round = max(
    (r for r, v in known.items() if not math.isnan(v)),
    key=lambda r: metric.merit(known[r]),
    default=None,
  )
  tens = ([known.get(r - i) for i in range(10)] for r in known)
  means = (math.fsum(ten) / 10 for ten in tens if None not in ten)
  return {
    'last_10_mean': math.fsum(recent) / len(recent) if recent else None,
    'num_last_10': len(recent),
    'best': known.get(best_round),
    'best_round': best_round,
    'best_10_mean': max(
      (mean for mean in means if not math.isnan(mean)),
      key=metric.merit,
      default=None,
    ),
    'last': [*known.values()][-1] if known else None,
  }


def json_text(value: Any, indent: Optional[int] = None) -> str:
  """Converts a value that `value_codec.to_json` accepts to strict JSON.

  JSON has no NaN and no infinities, so these become null.

  Args:
    indent: Number of spaces of indentation. None returns a single line.
  """
  text = json.dumps(value_codec.to_json(value))
  value = json.loads(text, parse_constant=lambda _: None)
  return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def write_json(path: _Path, value: Any) -> None:
  """Writes the `json_text` of a value to a `folders.atomic_file`."""
  text = json_text(value, indent=2)
  with folders.atomic_file(path) as file:
    file.write(text + '\n')


def read_json(path: _Path) -> Any:
  """The value in a JSON file.

  Raises:
    RunError: If the file cannot be read.
  """
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file)
  except (OSError, ValueError) as error:
    raise errors.RunError(f'Cannot read {path}: {error}.') from error


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """A data frame of rows.

  Args:
    rows: Rows, whose keys may differ. The columns are the keys of all rows, in
      the order of their first appearance. Keys of nested mappings are joined by
      "/". None is a missing value.
  """
  rows = [{n: v for n, v in flat(row).items() if v is not None} for row in rows]
  table = pd.DataFrame(rows)
  for name in table:
    known = [row[name] for row in rows if name in row]
    if len(known) < len(rows) and all(type(value) is int for value in known):
      # Missing values would otherwise turn integers into floats.
      table[name] = table[name].astype('Int64')
  return table


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
  """A row with the column names of `frame`, as JSON types.

  Empty lists, which parts of a process without metrics report, are left out.
  """
  items = value_codec.flatten(value_codec.to_json(row)).items()
  return {name: value for name, value in items if value != []}


def tidy(scores: pd.DataFrame) -> pd.DataFrame:
  """Scores of clients in tidy form, one number per row.

  Args:
    scores: Scores in the form of `Run.scores`, with any further columns.

  Returns:
    The same frame with other columns instead of scores: `domain` (None for all
    of a client's examples), `when` ('before' or 'after' personalization),
    `metric` and `value`.
  """
  pattern = r'(?:domains/(?P<domain>.*)/)?(?P<when>before|after)/(?P<metric>.*)'
  names = [name for name in scores if re.fullmatch(pattern, name)]
  if not names:
    return pd.DataFrame(columns=['domain', 'when', 'metric', 'value'])
  others = scores.columns.difference(names, sort=False)
  others = [name for name in others if not name.startswith('domains/')]
  long = scores.melt(others, names, 'name')
  parts = long['name'].str.extract(f'^{pattern}$')
  table = pd.concat([long[others], parts, long['value']], axis=1)
  # Drops domains of which a client has no examples.
  is_there = table['domain'].isna() | table['value'].notna()
  return table[is_there].reset_index(drop=True)


def write_csv(path: _Path, table: pd.DataFrame) -> None:
  """Writes a data frame, without its index, as a `folders.atomic_file`."""
  with folders.atomic_file(path) as file:
    table.to_csv(file, index=False)


def format_table(
  rows: Any, headings: Optional[Sequence[str]] = None, width: int = 80
) -> str:
  """Returns a table for the screen.

  Numbers have four significant digits, or from 10,000 to a billion all integer
  digits and no others. A dash marks a missing value.

  Args:
    rows: A data frame, or rows of one.
    headings: Names of the columns. None uses the names in the data frame.
    width: Maximum line length of a heading, which wraps at spaces.
  """
  table = pd.DataFrame(rows, columns=headings, dtype=object)
  kinds = table.convert_dtypes().dtypes
  return tabulate.tabulate(
    table.map(_cell),
    headers=[
      textwrap.fill(heading, width, break_long_words=False) for heading in table
    ],
    showindex=False,
    # Text that looks like a number stays as it is.
    disable_numparse=True,
    colalign=[
      'decimal' if pd.api.types.is_numeric_dtype(kind) else 'left'
      for kind in kinds
    ]
    if len(table)
    else None,
  )


def _cell(value):
  if isinstance(value, (float, np.floating)) and math.isfinite(value):
    return f'{value:.0f}' if 1e4 <= abs(value) < 1e9 else f'{value:.4g}'
  return '–' if pd.isna(value) else value
