"""What runs leave behind, to compare."""

import json

from tff_pfl import errors
from tff_pfl.runs import metrics_writers, report, run_store

_TIMES = ('seconds', 'rss_mb', 'seconds_per_round', 'peak_rss_mb')


def without_times(row):
  """A row of results without what differs from run to run."""
  return {key: value for key, value in row.items() if key not in _TIMES}


def summary(directory):
  """The content of summary.json."""
  return json.loads((directory / report.SUMMARY_NAME).read_text())


def everything(directory, num_clients):
  """All that a run has left behind, apart from times and memory."""
  with run_store.RunStore.open_for_reading(directory) as store:
    actual = {
      'server_state': store.server_state(),
      'client_states': store.client_states(range(num_clients)),
      'history': [without_times(row) for row in store.history()],
      'per_client': store.per_client(),
    }
  with open(directory / metrics_writers.JSONL_NAME) as file:
    actual['metrics.jsonl'] = [without_times(json.loads(row)) for row in file]
  actual['per_client.csv'] = (directory / report.PER_CLIENT_NAME).read_bytes()
  actual['summary.json'] = without_times(summary(directory))
  return actual


def last_round(directory):
  """The last round that is stored; -1 without a run."""
  try:
    with run_store.RunStore.open_for_reading(directory) as store:
      return store.last_round
  except errors.RunError:
    return -1
