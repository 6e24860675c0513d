"""Makes TensorFlow Federated 0.87 importable where TensorFlow is new.

TFF's own modules run there as they are. Two that they import do not:

* `tensorflow_privacy` 0.9.0 imports estimators, which TensorFlow no longer has.
  It has a switch that leaves out all its imports; those that TFF takes from it,
  its queries, are set here.
* `jax.lib` no longer gives out `xla_client`, which `jaxlib` still has, and
  `jax.stages` no type of its own for the shapes of results.

Importing `tff_pfl` does this. For programs that import TFF before it or without
it, a copy of this file lies beside the packages of an environment, and a `.pth`
file has Python call `before_tff` when it starts. So it may import nothing that
takes time.
"""

import importlib
import os
import sys

_QUERIES = {
  'discrete_gaussian_query': ('DiscreteGaussianSumQuery',),
  'distributed_discrete_gaussian_query': (
    'DistributedDiscreteGaussianSumQuery',
  ),
  'distributed_skellam_query': ('DistributedSkellamSumQuery',),
  'dp_query': ('DPQuery', 'SumAggregationDPQuery'),
  'gaussian_query': ('GaussianSumQuery',),
  'nested_query': ('NestedQuery',),
  'no_privacy_query': ('NoPrivacyAverageQuery', 'NoPrivacySumQuery'),
  'normalized_query': ('NormalizedQuery',),
  'quantile_adaptive_clip_sum_query': ('QuantileAdaptiveClipSumQuery',),
  'quantile_adaptive_clip_tree_query': ('QAdaClipTreeResSumQuery',),
  'quantile_estimator_query': (
    'NoPrivacyQuantileEstimatorQuery',
    'QuantileEstimatorQuery',
  ),
  'restart_query': ('RestartQuery',),
  'tree_aggregation': (),
  'tree_aggregation_query': ('TreeCumulativeSumQuery', 'TreeResidualSumQuery'),
  'tree_range_query': ('TreeRangeSumQuery',),
}


def repair() -> None:
  """Repairs what `tensorflow_federated` imports; again, it changes nothing."""
  sys.skip_tf_privacy_import = True
  privacy = importlib.import_module('tensorflow_privacy')
  for module_name, names in _QUERIES.items():
    module = importlib.import_module(
      f'tensorflow_privacy.privacy.dp_query.{module_name}'
    )
    setattr(privacy, module_name, module)
    for name in names:
      setattr(privacy, name, getattr(module, name))

  jax_lib = importlib.import_module('jax.lib')
  if not hasattr(jax_lib, 'xla_client'):
    jax_lib.xla_client = importlib.import_module('jaxlib.xla_client')
  jax = sys.modules['jax']
  if not hasattr(jax.stages, 'OutInfo'):
    jax.stages.OutInfo = jax.ShapeDtypeStruct


class _Finder:
  """Finds TFF where it is, and has it repaired before it is executed."""

  def find_spec(self, name, path=None, target=None):
    if name != 'tensorflow_federated':
      return None
    sys.meta_path.remove(self)
    spec = importlib.import_module('importlib.util').find_spec(name)
    if spec is not None:
      execute = spec.loader.exec_module
      spec.loader.exec_module = lambda module: (repair(), execute(module))
    else:
      sys.meta_path.insert(0, self)
    return spec


def before_tff() -> None:
  """Has `repair` called when `tensorflow_federated` is imported."""
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
  if 'tensorflow_federated' not in sys.modules:
    sys.meta_path.insert(0, _Finder())
