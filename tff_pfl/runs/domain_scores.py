"""Scores of each domain, over the clients that hold its test examples.

A domain's examples lie on many clients, each of which has its own model. A
metric of the domain is the mean over all of these examples, each scored by the
model of the client that holds it. For two classes there is also the area under
the ROC curve, see `two_class_scores`.

References:
  A. Zhong, H. He, Z. Ren, N. Li, Q. Li. FedDAR: Federated Domain-Aware
    Representation Learning. ICLR 2023. Tables 1 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl.runs import two_class_scores


def client_domains(
  domains: Mapping[str, Any], names: Sequence[str]
) -> dict[str, dict]:
  """A client's scores by domain, as they are kept in its row.

  Args:
    domains: `domains` of the client's result of `process.evaluate_clients`:
      `examples`, `[M]`, the number of its test examples of each domain, and
      `before` and `after`, each from metric to `[M]`, sums over these.
    names: The names of the M domains.

  Returns:
    From name of a domain of which the client has test examples to
    `num_test_examples` and `before` and `after`, dicts of metrics, means over
    these.
  """
  counts = np.asarray(domains['examples'])
  return {
    names[m]: {
      'num_test_examples': round(float(counts[m])),
      **{
        which: {
          metric: float(sums[m]) / float(counts[m])
          for metric, sums in domains[which].items()
        }
        for which in ('before', 'after')
      },
    }
    for m in np.flatnonzero(counts > 0)
  }


def summarize(
  rows: Sequence[Mapping[str, Any]],
  names: Sequence[str],
  *,
  has_global_model: bool,
  predictions: Optional[Sequence[two_class_scores.Predictions]] = None,
) -> dict[str, Any]:
  """Sums up an evaluation of all clients by domain.

  Args:
    rows: One for each client, at least one: `before` and `after`, dicts of
      metrics, means over its test examples, and `domains`, see
      `client_domains`.
    names: The names of the domains.
    has_global_model: True if `before` is the score of a global model.
    predictions: For a task of two classes, those of the same clients.

  Returns:
    A dict:
      num_test_examples: From domain to number of its test examples.
      without_test_examples: Domains that have none.
      personal: From metric, with `predictions` also 'auc', to
        by_domain: From domain to its value. None for a domain without test
          examples, and the AUC also for one whose test examples are all of one
          class.
        min, mean, max: Of the values of the domains that have one, each domain
          with the same weight; None where no domain has one.
        client_mean: Mean over clients of the client's value; in the AUC, over
          those whose test examples are of both classes, None without any.
      global: The same of the global model; None without one.
  """
  counts = {
    name: sum(
      row['domains'][name]['num_test_examples']
      for row in rows
      if name in row['domains']
    )
    for name in names
  }
  return {
    'num_test_examples': counts,
    'without_test_examples': [name for name in names if not counts[name]],
    'personal': _figures(rows, counts, predictions, 'after'),
    'global': _figures(rows, counts, predictions, 'before')
    if has_global_model
    else None,
  }


def _figures(rows, counts, predictions, which):
  """All metrics `before` or `after` personalization."""
  # A metric of all predictions of a client is none of its domains.
  first_domain = next(iter(rows[0]['domains'].values()))
  figures = {
    metric: _figure(
      {name: _pooled(rows, name, which, metric, counts) for name in counts},
      [row[which][metric] for row in rows],
    )
    for metric in first_domain[which]
  }
  if predictions:
    figures[two_class_scores.AUC] = _auc_figure(
      predictions, which, list(counts)
    )
  return figures


def _pooled(rows, name, which, metric, counts):
  """The mean of a metric over a domain's test examples."""
  if not counts[name]:
    return None
  own = [row['domains'][name] for row in rows if name in row['domains']]
  total = sum(one[which][metric] * one['num_test_examples'] for one in own)
  return total / counts[name]


def _auc_figure(predictions, which, names):
  y, scores, domain = (
    np.concatenate([getattr(one, field) for one in predictions])
    for field in ('y', which, 'domain')
  )
  return _figure(
    {
      name: two_class_scores.area_under_curve(
        y[domain == m], scores[domain == m]
      )
      for m, name in enumerate(names)
    },
    [
      two_class_scores.area_under_curve(one.y, getattr(one, which))
      for one in predictions
    ],
  )


def _figure(by_domain, client_values):
  """A metric's value for each domain, and figures over domains and clients."""
  known = [value for value in by_domain.values() if value is not None]
  clients = [value for value in client_values if value is not None]
  # Unlike min and max of Python, NumPy's do not hide a value that is NaN.
  overall = {'min': np.min, 'mean': np.mean, 'max': np.max}
  return {
    'by_domain': by_domain,
    **{
      name: float(function(known)) if known else None
      for name, function in overall.items()
    },
    'client_mean': float(np.mean(clients)) if clients else None,
  }
