"""Class weights and example weights in the training loss.

As in Keras, each example's loss is multiplied by its own weight and by the
weight of its class. The loss of a batch is the sum of these products, divided
by the number of examples. Reported losses and metrics ignore the weights.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.models import split_model

BALANCED = 'balanced'
FORMS = f'{BALANCED}, or distinct classes with positive weights (0:1,1:10)'


@fields.checked_call
def with_class_weight(
  model: split_model.SplitModel,
  class_weight: Union[str, Mapping[Any, float]],
  data: Optional[Any] = None,
) -> split_model.SplitModel:
  """Returns the model with class weights in the training loss.

  Args:
    model: A classifier whose labels are single numbers.
    class_weight: The factor of each class's loss (1 for classes that are not
      named), or `'balanced'`, or a text that `parse` reads.
    data: The `FederatedDataset` whose training labels, over all clients,
      'balanced' counts. If its classes have names, other weights are by these
      names. Without it, they are by label.
  """
  errors.expect(
    split_model.has_classes(model),
    'class_weight',
    f'None for {model.name!r}, whose examples do not have one class each',
    class_weight,
  )
  if isinstance(class_weight, str):
    class_weight = parse(class_weight, getattr(data, 'class_names', None))
  elif getattr(data, 'class_names', None) is not None:
    labels = {name: label for label, name in enumerate(data.class_names)}
    for name in class_weight:
      errors.expect_one_of('class_weight', str(name), labels)
    class_weight = {labels[str(n)]: w for n, w in class_weight.items()}
  if class_weight == BALANCED:
    errors.expect(
      hasattr(data, 'class_counts'),
      'data',
      "given, a FederatedDataset, for class_weight='balanced'",
      data,
    )
    class_weight = balanced(data.class_counts('train').sum(axis=0))
  return dataclasses.replace(
    model,
    training_loss=weighted(model.loss, class_weight, model.classifier),
    made_with={**model.made_with, 'class_weight': class_weight},
  )


@fields.checked_call
def with_sample_weight(
  model: split_model.SplitModel,
) -> split_model.SplitModel:
  """Returns the model for examples with weights.

  Args:
    model: Takes examples `{x, y}` or `{x, y, domain}`.

  Returns:
    The same model for examples with a float32 `weight`, which only the training
    loss uses.
  """
  spec = collections.OrderedDict(model.element_spec)
  spec['weight'] = tf.TensorSpec([], tf.float32)
  if 'domain' in spec:
    spec.move_to_end('domain')
  return dataclasses.replace(model, element_spec=spec)


def parse(
  text: str, class_names: Optional[Sequence[str]] = None
) -> Union[str, dict[int, float]]:
  """Reads class weights from a text such as `0:1,1:10` or `no:1,yes:10`.

  Args:
    class_names: Names of the classes, by label. None if labels have no names.

  Returns:
    A dict from label to weight, or 'balanced' for this text.
  """
  if text == BALANCED:
    return text
  labels = {name.strip(): n for n, name in enumerate(class_names or ())}
  weights = {}
  pairs = [part.rsplit(':', 1) for part in text.split(',')]
  with contextlib.suppress(KeyError, ValueError):
    weights = {
      labels[name.strip()] if labels else int(name): float(weight)
      for name, weight in pairs
    }
  errors.expect(
    len(weights) == len(pairs)
    and all(errors.is_number(w) and w > 0 for w in weights.values()),
    'class_weight',
    FORMS + (f', for the classes {", ".join(labels)}' if labels else ''),
    text,
  )
  return weights


def balanced(counts: np.ndarray) -> dict[int, float]:
  """Computes weights that make all classes count the same.

  Class c has the weight n / (k n_c), as in scikit-learn's
  `compute_class_weight('balanced')`, where n_c of n examples are in class c and
  k classes have examples. Classes without examples are left out.

  Args:
    counts: Number of examples of each class, `[classes]`, not all 0.
  """
  present = np.flatnonzero(counts)
  scale = counts.sum() / len(present)
  return {int(label): float(scale / counts[label]) for label in present}


def weighted(
  function: Callable[..., tf.Tensor],
  class_weight: Mapping[int, float],
  classifier: Optional[split_model.Classifier],
) -> Callable[..., tf.Tensor]:
  """Multiplies a loss by the weight of the label's class.

  Args:
    function: `(y, outputs) -> [batch, ...]`, a value for each label.
    class_weight: The factor of each class, 1 for classes that are not named.
    classifier: The meaning of the outputs. None raises an error.
  """
  errors.expect(
    classifier is not None,
    'class_weight',
    'None for a loss that has no classes',
    class_weight,
  )
  errors.expect_type(
    class_weight, Mapping, 'class_weight', 'a dict from class to factor'
  )
  factors = np.ones(classifier.num_classes, np.float32)
  for label, weight in class_weight.items():
    errors.expect_int('class_weight', label, 0, classifier.num_classes - 1)
    errors.expect(
      errors.is_number(weight) and weight >= 0,
      'class_weight',
      'a non-negative number that float32 can hold',
      weight,
    )
    factors[label] = weight
  errors.expect(
    factors.any(), 'class_weight', 'positive for some class', class_weight
  )

  def call(y_true, y_pred):
    if classifier.is_multilabel:
      # One value per label. The function alone would return their mean.
      values = function(y_true[..., tf.newaxis], y_pred[..., tf.newaxis])
      each = tf.gather(factors, tf.cast(y_true, tf.int32))
      return tf.reduce_mean(values * tf.cast(each, values.dtype), axis=-1)
    values = function(y_true, y_pred)
    if y_true.shape.rank == y_pred.shape.rank and y_true.shape[-1] != 1:
      y_true = tf.argmax(y_true, axis=-1)
    classes = tf.reshape(tf.cast(y_true, tf.int32), tf.shape(values))
    # Ignored labels may be out of range.
    classes = tf.clip_by_value(classes, 0, classifier.num_classes - 1)
    return values * tf.cast(tf.gather(factors, classes), values.dtype)

  return call
