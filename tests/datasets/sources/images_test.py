"""Tests of what data sets of images share."""

import numpy as np

from tff_pfl.datasets.sources import images


def test_to_unit_interval_maps_bytes():
  found = images.to_unit_interval(np.array([0, 51, 255], np.uint8))
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, np.float32([0, 0.2, 1]))
