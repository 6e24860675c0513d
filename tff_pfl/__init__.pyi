"""The names of `tff_pfl`: for type checkers, editors and `__init__.py`."""

from tff_pfl import fields as fields
from tff_pfl import plots as plots
from tff_pfl.core.aggregators import make_aggregator as make_aggregator
from tff_pfl.core.client import Client as Client
from tff_pfl.core.client import ClientResult as ClientResult
from tff_pfl.core.client_sampling import CohortSampler as CohortSampler
from tff_pfl.core.client_work import Exchange as Exchange
from tff_pfl.core.client_work import global_weights_work as global_weights_work
from tff_pfl.core.client_work import (
  partitioned_weights_work as partitioned_weights_work,
)
from tff_pfl.core.hparams import HeadAndBodyHParams as HeadAndBodyHParams
from tff_pfl.core.hparams import LocalTrainingHParams as LocalTrainingHParams
from tff_pfl.core.objectives import body_loss as body_loss
from tff_pfl.core.objectives import joint_loss as joint_loss
from tff_pfl.core.objectives import proximal as proximal
from tff_pfl.core.padding import padded as padded
from tff_pfl.core.personalization import Personalization as Personalization
from tff_pfl.core.privacy import (
  DistributedPrivateMean as DistributedPrivateMean,
)
from tff_pfl.core.privacy import PrivateMean as PrivateMean
from tff_pfl.core.process_options import ProcessOptions as ProcessOptions
from tff_pfl.core.training_options import TrainingOptions as TrainingOptions
from tff_pfl.datasets import Arrays as Arrays
from tff_pfl.datasets import Examples as Examples
from tff_pfl.datasets import FederatedDataset as FederatedDataset
from tff_pfl.datasets import dataset as dataset
from tff_pfl.datasets import describe_datasets as describe_datasets
from tff_pfl.datasets import load_arrays as load_arrays
from tff_pfl.datasets import load_dataset as load_dataset
from tff_pfl.errors import RunError as RunError
from tff_pfl.methods.registry import ALGORITHMS as ALGORITHMS
from tff_pfl.methods.registry import build as build
from tff_pfl.methods.registry import method as method
from tff_pfl.models import zoo as zoo
from tff_pfl.models.class_weights import with_class_weight as with_class_weight
from tff_pfl.models.class_weights import (
  with_sample_weight as with_sample_weight,
)
from tff_pfl.models.client_metrics import with_metrics as with_metrics
from tff_pfl.models.domain_models import with_domains as with_domains
from tff_pfl.models.keras_bridge import from_keras as from_keras
from tff_pfl.models.keras_bridge import to_keras as to_keras
from tff_pfl.models.split_model import SplitModel as SplitModel
from tff_pfl.models.weight_files import with_weights as with_weights
from tff_pfl.models.weight_partition import WeightPartition as WeightPartition
from tff_pfl.models.zoo import model as model
from tff_pfl.runs.callbacks import Callback as Callback
from tff_pfl.runs.data_source import ClientDataSource as ClientDataSource
from tff_pfl.runs.evaluation import personalize as personalize
from tff_pfl.runs.loop import RunOptions as RunOptions
from tff_pfl.runs.loop import run as run
from tff_pfl.runs.run import Run as Run
from tff_pfl.runs.run import plot as plot
from tff_pfl.runs.run import summarize as summarize
from tff_pfl.runs.run import tidy as tidy
from tff_pfl.runs.settings import Settings as Settings
from tff_pfl.runs.settings import open_run as open_run
from tff_pfl.runtime import create_runtime as create_runtime
from tff_pfl.studies.claims import ALL_OTHERS as ALL_OTHERS
from tff_pfl.studies.claims import at_least as at_least
from tff_pfl.studies.claims import better as better
from tff_pfl.studies.claims import close as close
from tff_pfl.studies.plan import Range as Range
from tff_pfl.studies.results import open_study as open_study
from tff_pfl.studies.study import Method as Method
from tff_pfl.studies.study import Study as Study

__version__: str
