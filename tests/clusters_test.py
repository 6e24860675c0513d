"""What docs/clusters has for Kubernetes and Slurm fits the programs."""

import importlib
import pathlib
import re

import pytest
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CLUSTERS = _ROOT / 'docs' / 'clusters'


@pytest.fixture(name='ray_job', scope='module')
def _ray_job():
  yaml = pytest.importorskip('yaml', reason='needs Ray (`make venv RAY=1`)')
  return yaml.safe_load((_CLUSTERS / 'ray_job.yaml').read_text())


def _assert_flags_of_train(command):
  importlib.import_module('binaries.train')
  names = re.findall(r'--([a-z_]+)', command)
  assert 'runtime' in names
  for name in names:
    assert name == 'flagfile' or name in flags.FLAGS, name


def test_kubernetes_job_trains_on_its_cluster(ray_job):
  spec = ray_job['spec']
  _assert_flags_of_train(spec['entrypoint'])
  flagfile = re.search(r'--flagfile=(\S+)', spec['entrypoint']).group(1)
  assert (_ROOT / flagfile).exists()
  groups = [
    spec['rayClusterSpec']['headGroupSpec'],
    *spec['rayClusterSpec']['workerGroupSpecs'],
  ]
  for group in groups:
    pod = group['template']['spec']
    (container,) = pod['containers']
    assert container['workingDir'] == '/tff_pfl'
    mounted = {mount['name'] for mount in container['volumeMounts']}
    assert mounted == {volume['name'] for volume in pod['volumes']}


def test_kubernetes_job_has_the_locked_ray(ray_job):
  dockerfile = (_CLUSTERS / 'Dockerfile').read_text()
  lock = (_ROOT / 'requirements-ray.txt').read_text()
  locked = re.search(r'^ray==(\S+)', lock, re.MULTILINE).group(1)
  assert ray_job['spec']['rayClusterSpec']['rayVersion'] == locked
  assert f'rayproject/ray:{locked}-' in dockerfile


def test_slurm_script_trains_on_its_cluster():
  script = (_CLUSTERS / 'slurm.sh').read_text()
  _assert_flags_of_train(script.split('binaries.train', 2)[2])
