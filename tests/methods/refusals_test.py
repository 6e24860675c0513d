"""Hyperparameters and models that methods refuse."""

import math
import re

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import registry


@pytest.mark.parametrize(
  ('name', 'field', 'value'),
  [
    ('apfl', 'mixing_weight', -0.1),
    ('apfl', 'mixing_weight', 1.1),
    ('apfl', 'mixing_learning_rate', -1.0),
    ('ditto', 'proximal_strength', -1.0),
    ('ditto', 'personal_learning_rate', 0.0),
    ('fed_ala', 'mixing_learning_rate', -1.0),
    ('fed_ala', 'mixing_data_share', 0.0),
    ('fed_ala', 'mixing_data_share', math.nan),
    ('fed_ala', 'num_mixing_epochs', -1),
    ('fed_alt', 'updates', 'both'),
    ('fed_babu', 'fine_tune_scope', 'none'),
    ('fed_babu', 'num_fine_tune_epochs', 0),
    ('fed_dar', 'ridge', -1.0),
    ('fed_dar', 'ridge', math.nan),
    ('fed_dar', 'projection_dim', 0),
    ('fed_dar', 'num_head_epochs', -1),
    ('fed_dar', 'head_learning_rate', 0.0),
    ('fed_dar', 'body_learning_rate', 0.0),
    ('fed_dbe', 'pull_strength', -0.1),
    ('fed_dbe', 'mean_rate', 0.0),
    ('fed_dbe', 'mean_rate', math.nan),
    ('fed_em', 'num_components', 0),
    ('fed_em', 'num_mixture_steps', 0),
    ('fed_em', 'component_seed', -1),
    ('fed_fac', 'threshold', -0.1),
    ('fed_fac', 'threshold', math.nan),
    ('fed_fac', 'explained_variance', 1.01),
    ('fed_fac', 'explained_variance', math.nan),
    ('fed_fac', 'learning_rate', -1),
    ('fed_min_max', 'weight_learning_rate', -0.1),
    ('fed_mtl', 'coupling_strength', -0.1),
    ('fed_pac', 'pull_strength', -0.1),
    ('fed_pac', 'max_cohort_size', 0),
    ('fed_proto', 'pull_strength', -0.1),
    ('fed_prox', 'proximal_strength', -0.1),
    ('fed_prox', 'proximal_strength', math.nan),
    ('fed_prox', 'proximal_strength', math.inf),
    ('fed_rep', 'num_head_epochs', -1),
    ('fed_rep', 'num_body_epochs', -1),
    ('fed_rep', 'num_head_steps', 0),
    ('fed_rep', 'num_body_steps', 0),
    ('fed_rep', 'head_learning_rate', 0.0),
    ('fed_rep', 'body_learning_rate', -1.0),
    ('fed_rep', 'momentum', 1.0),
    ('fed_rep', 'optimizer', 'adamw'),
    ('fed_rep', 'batch_size', -1),
    ('fed_rod', 'balance_exponent', -1.0),
    ('fed_sa_lora', 'rank', 0),
    ('fed_sa_lora', 'scaling', 0.0),
    ('fed_sa_lora', 'adapter_seed', -1),
    ('ifca', 'num_clusters', 0),
    ('ifca', 'cluster_seed', -1),
    ('knn_per', 'num_neighbors', -1),
    ('knn_per', 'neighbor_weight', 1.1),
    ('knn_per', 'length_scale', 0.0),
    ('knn_per', 'num_stored_examples', 0),
    ('l2gd', 'aggregation_probability', 1.0),
    ('l2gd', 'aggregation_probability', -0.1),
    ('l2gd', 'coupling_strength', -1.0),
    # An aggregation round would go beyond the mean.
    ('l2gd', 'coupling_strength', 100.0),
    ('p_fed_me', 'proximal_strength', 0.0),
    ('p_fed_me', 'num_inner_steps', 0),
    ('p_fed_me', 'inner_learning_rate', 0.0),
    ('p_fed_me', 'num_adaptation_epochs', 0),
    ('per_fed_avg', 'inner_learning_rate', -0.01),
    ('per_fed_avg', 'inner_learning_rate', math.nan),
    ('per_fed_avg', 'learning_rate', 0.0),
    ('per_fed_avg', 'num_inner_steps', 0),
    ('per_fed_avg', 'num_inner_steps', 1.5),
    ('per_fed_avg', 'num_adaptation_steps', 1.5),
    ('per_fed_avg', 'num_adaptation_steps', -1),
    ('per_fed_avg', 'hessian_free_step', 0.0),
    ('per_fed_avg', 'num_steps', 0),
    ('per_fed_avg', 'batch_size', -1),
    # Control variates are those of plain SGD.
    ('scaffold', 'momentum', 0.5),
    ('scaffold', 'optimizer', 'adam'),
    ('scaffold', 'num_clients', 0),
  ],
)
def test_hyperparameter_out_of_range_is_refused_by_name(name, field, value):
  named = re.sub('num_(head|body)_', 'num_', field)
  with pytest.raises(ValueError, match=f'Expected `[^`]*{named}[^`]*` to be'):
    toy_problems.hparams_for(name, **{field: value})


@pytest.mark.parametrize(
  ('name', 'changes', 'message'),
  [
    ('fed_dar', {'aggregation': 'mean'}, 'weighted_average, second_order'),
    ('fed_fac', {'threshold': 1.5}, r'threshold.*\[0, 1\], inf or -inf.*1.5'),
    ('fed_fac', {'explained_variance': 0}, r'explained_variance.*\(0, 1\].*0'),
    ('fed_fac', {'mode': 'both'}, "mode.*dynamic, static.*'both'"),
    ('fed_fac', {'split': 'half'}, 'split.*eigenvectors, random'),
    ('fed_fac', {'analysed': 'biases'}, 'analysed.*updates, weights'),
    ('per_fed_avg', {'variant': 'hf'}, 'first_order, hessian_free, exact'),
    ('per_fed_avg', {'inner_scope': 'body'}, 'one of all, head'),
  ],
)
def test_refusal_tells_what_is_possible(name, changes, message):
  with pytest.raises(ValueError, match=message):
    toy_problems.hparams_for(name, **changes)


@pytest.mark.parametrize(
  'name', ['fed_babu', 'fed_dar', 'fed_per', 'fed_rep', 'lg_fed_avg']
)
def test_model_without_a_body_is_refused(name):
  model = toy_problems.linear_network(None, np.ones([2, 1], np.float32))
  with pytest.raises(ValueError, match=f'weights for {name} to share'):
    registry.build(name, toy_problems.model_for(name, model))


@pytest.mark.parametrize(
  'name', [n for n, a in registry.ALGORITHMS.items() if a.needs_domains]
)
def test_method_for_domains_refuses_a_model_without(name):
  with pytest.raises(ValueError, match=f'`model`.*{name} demands.*domain'):
    registry.build(name, toy_problems.classifier())


@pytest.mark.parametrize(
  'name', [n for n, a in registry.ALGORITHMS.items() if a.needs_classes]
)
def test_method_for_classes_refuses_a_regression(name):
  model = toy_problems.linear_network(
    np.ones([2, 2], 'f'), np.ones([2, 1], 'f')
  )
  with pytest.raises(ValueError, match=f'`model`.*classifier.*{name} demands'):
    registry.build(name, model)
