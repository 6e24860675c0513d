from tff_pfl.models import split_model
from tff_pfl.runs import domain_report


def _figure(sea, hills, client_mean):
  known = [value for value in (sea, hills) if value is not None]
  return {
    'by_domain': {'sea': sea, 'hills': hills, 'moon': None},
    'min': min(known),
    'mean': sum(known) / len(known),
    'max': max(known),
    'client_mean': client_mean,
  }


def _evaluation(round_number, personal, shared):
  return {
    'round': round_number,
    'domains': {
      'num_test_examples': {'sea': 40, 'hills': 20, 'moon': 0},
      'without_test_examples': ['moon'],
      'personal': personal,
      'global': shared,
    },
  }


def _domains(shared=True):
  """Sums up rounds 2, 11 and 20; the last ten rounds are 11 to 20."""
  evaluations = [
    _evaluation(
      round_number,
      {
        'loss': _figure(1.0, 2.0, 1.5),
        'accuracy': _figure(sea, hills, 0.625),
        'auc': _figure(sea, None, None),
      },
      {
        'loss': _figure(1.0, 2.0, 1.5),
        'accuracy': _figure(0.25, 0.125, 0.1875),
        'auc': _figure(sea, None, None),
      }
      if shared
      else None,
    )
    for round_number, sea, hills in (
      (2, 1.0, 1.0),
      (11, 0.5, 0.75),
      (20, 0.75, 0.25),
    )
  ]
  return domain_report.over_rounds(evaluations, 20)


def test_figures_over_rounds_are_those_computed_by_hand():
  domains = _domains()
  assert domains['num_test_examples'] == {'sea': 40, 'hills': 20, 'moon': 0}
  assert domains['without_test_examples'] == ['moon']
  accuracy = domains['personal']['accuracy']
  assert accuracy == {
    'by_domain': {
      'sea': {'last': 0.75, 'last_10_mean': 0.625},
      'hills': {'last': 0.25, 'last_10_mean': 0.5},
      'moon': {'last': None, 'last_10_mean': None},
    },
    # The mean of the rounds' minima, not the minimum of the means.
    'min': {'last': 0.25, 'last_10_mean': 0.375},
    'mean': {'last': 0.5, 'last_10_mean': 0.5625},
    'max': {'last': 0.75, 'last_10_mean': 0.75},
    'client_mean': {'last': 0.625, 'last_10_mean': 0.625},
  }
  assert domains['global']['accuracy']['min']['last_10_mean'] == 0.125
  # An evaluation outside of the last ten rounds does not count.
  domains = domain_report.over_rounds(
    [_evaluation(3, {'accuracy': _figure(0.5, 0.75, 0.5)}, None)], 20
  )
  assert domains['personal']['accuracy']['min'] == {
    'last': 0.5,
    'last_10_mean': None,
  }


def test_each_domain_has_a_row():
  sea, hills, moon = domain_report.rows(_domains())
  assert sea['domain'] == 'sea'
  assert sea['num_test_examples'] == 40
  assert sea['personal']['accuracy'] == {'last': 0.75, 'last_10_mean': 0.625}
  assert hills['global']['accuracy']['last'] == 0.125
  assert moon['num_test_examples'] == 0
  assert moon['personal']['loss']['last'] is None
  alone = _domains(shared=False)
  assert alone['global'] is None
  assert 'global' not in domain_report.rows(alone)[0]
  bars = domain_report.bars(alone, split_model.ACCURACY)
  assert all(set(one['model']) == {'personal model'} for one in bars.values())


def _cells(table):
  """The rows of a table by their names."""
  names = ['sea', 'hills', 'moon']
  names += [f'{name} over domains' for name in ('min', 'mean', 'max')]
  names += ['mean over clients']
  lines = table.splitlines()[-len(names) :]
  for name, line in zip(names, lines):
    assert line.startswith(name)
  return {name: line[len(name) :].split() for name, line in zip(names, lines)}


def test_the_table_has_accuracy_and_auc_of_each_domain_and_over_them():
  rows = _cells(domain_report.table(_domains(), 'last 10\nrounds'))
  auc = ['0.7500', '0.6250', '0.7500']
  assert rows == {
    'sea': ['40', '0.7500', '0.6250', '0.2500', *auc],
    'hills': ['20', '0.2500', '0.5000', '0.1250', '–', '–', '–'],
    'moon': ['0', '–', '–', '–', '–', '–', '–'],
    'min over domains': ['–', '0.2500', '0.3750', '0.1250', *auc],
    'mean over domains': ['–', '0.5000', '0.5625', '0.1875', *auc],
    'max over domains': ['–', '0.7500', '0.7500', '0.2500', *auc],
    'mean over clients': ['–', '0.6250', '0.6250', '0.1875', '–', '–', '–'],
  }


def test_the_table_of_a_regression_has_its_metrics():
  evaluation = _evaluation(
    1, {'loss': _figure(1.0, 2.0, 1.5), 'mae': _figure(0.5, 0.25, 0.5)}, None
  )
  domains = domain_report.over_rounds([evaluation], 1)
  rows = _cells(domain_report.table(domains, 'last 10\nrounds'))
  assert rows['sea'] == ['40', '1.000', '1.000', '0.5000', '0.5000']
  ((metric, bars),) = domain_report.bars(domains, split_model.LOSS).items()
  assert metric == split_model.LOSS
  assert set(bars['model']) == {'personal model'}
  assert bars.set_index('domain')['value']['sea'] == 1.0


def test_bars_are_of_domains_with_test_examples():
  accuracy, auc = domain_report.bars(_domains(), split_model.ACCURACY).items()
  assert accuracy[0] == split_model.ACCURACY
  assert accuracy[1].to_numpy().tolist() == [
    ['global model', 'sea', 0.25],
    ['global model', 'hills', 0.125],
    ['personal model', 'sea', 0.75],
    ['personal model', 'hills', 0.25],
  ]
  # Where both are the same there is one.
  assert auc[0] == split_model.PrimaryMetric('AUC', True)
  assert auc[1][['model', 'domain']].to_numpy().tolist() == [
    ['global model', 'sea'],
    ['global model', 'hills'],
  ]
