"""All settings of a run as one value, stored with the run.

A run's data, model and process can be built again from its stored settings, to
resume it or to use its personal models.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import (
  aggregators,
  attacks,
  personalized_process,
  phases,
  schedules,
  training_options,
)
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.methods import registry
from tff_pfl.models import (
  augmentation,
  class_weights,
  client_metrics,
  description,
  domain_models,
  split_model,
  zoo,
)
from tff_pfl.runs import client_sampling, privacy, training, warm_up
from tff_pfl.runs import run as run_lib
from tff_pfl.system import folders

_INFINITIES = ['inf', '-inf']
# Arguments of `training.run` that are not for a warm-up.
_RUN_ARGUMENTS = ('keep_best', 'callbacks')


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The settings of a run.

  Attributes:
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: The method's hyperparameters; None for their defaults.
    dataset: A key of `datasets.DATASETS`.
    data_dir: Folder with the data set's files, for those that have any.
    dataset_arguments: The loader's own arguments, such as the length of
      sequences, and `classes`, see `datasets.load_dataset`.
    partition: Partition of the data among clients, such as 'shards:2'; None for
      'natural' if the data name their clients, or else 'shards:2' ('iid' for a
      table). This and the next are set when the settings are made, also of
      `dataclasses.replace`.
    num_clients: Number of clients; None for all with the partition natural, or
      else 30.
    model: A key of `zoo.MODELS`.
    model_arguments: The model's own arguments.
    domain_model: Use of domains by the model, on data with domains: a key of
      `domain_models.KINDS`.
    reweight_domains: True for equal weights of all domains in the loss, where
      all of the model's weights are trained together.
    aggregator: A name for `aggregators.make_aggregator`, or a mean with noise,
      `privacy.PrivateMean` or `privacy.DistributedPrivateMean`.
    attack: Attack by some clients, see `attacks.make_attack`.
    attacked_fraction: Share of attacked clients, which are not scored.
    client_weighting: 'num_examples', 'uniform', or None for the method's own.
    stateless: True if clients forget their local state after each round.
    server_optimizer: 'sgd' or 'adam'.
    server_learning_rate: Learning rate of the server, positive; 1 with 'sgd'
      gives the plain mean.
    server_momentum: Momentum of the server, in [0, 1); ignored by 'adam'.
    statistics: Place of the moving statistics of batch normalization, see
      `core.options.ProcessOptions`.
    augmentation: Random changes of images in training, such as 'crop:4+flip',
      see `models.augmentation`.
    class_weight: Weights of the classes in the loss of training: 'balanced' or
      such as '0:1,1:10', see `models.class_weights`.
    metrics: Further metrics of reports, see `client_metrics.with_metrics`.
    weight_decay: See `core.training_options`.
    decoupled_weight_decay: See `core.training_options`.
    max_gradient_norm: See `core.training_options`.
    learning_rate_schedule: Factor of the clients' learning rates by round, such
      as 'cosine:100', see `core.schedules`.
    server_learning_rate_schedule: Factor of the server's learning rate by
      round.
    personalization: Options of the personalization of clients' models before
      they are scored.
    initial_run: Folder of a finished run of the same network, from whose global
      model this one starts, or its warm-up; None for random weights.
    initial_run_part: Part of that model that is taken: 'all', or the 'body'
      alone, with a random head, as where the other run had other classes.
    initial_weights: File of weights from which the run starts instead, or its
      warm-up, such as those of a network of `keras.applications`, see
      `models.weight_files`.
    num_warmup_rounds: Rounds of FedAvg before, from whose model the method
      starts (see `warm_up`, also for `initial_run` and `initial_weights`).
    num_warmup_epochs: Local epochs of these rounds; None for the local training
      of the method.
    num_rounds: Rounds of training.
    cohort_size: Number of clients in a round, 1 to `num_clients`; None for 10,
      or all if there are fewer.
    dropout_rate: Probability with which a client of a round fails to report and
      is left out of it.
    rounds_per_evaluation: Rounds between evaluations.
    num_final_evaluations: Number of last rounds that are all evaluated.
    seed: Fixes the partition, the initial weights, the sampling and all client
      work; from 0 to 2**63 - 1.
    runtime: A key of `runtime.RUNTIMES`.
  """

  algorithm: str = 'fed_rep'
  hparams: Any = None
  dataset: str = 'digits'
  data_dir: Optional[str] = None
  dataset_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  partition: Optional[str] = None
  num_clients: Optional[int] = hparams_lib.integer(None, 1)
  model: str = hparams_lib.one_of('mlp', zoo.MODELS)
  model_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  domain_model: str = hparams_lib.one_of('shared', domain_models.KINDS)
  reweight_domains: bool = False
  aggregator: Union[str, privacy.Aggregator] = 'mean'
  attack: str = 'none'
  attacked_fraction: float = 0.0
  client_weighting: Optional[str] = None
  stateless: bool = False
  server_optimizer: str = 'sgd'
  server_learning_rate: float = 1.0
  server_momentum: float = 0.0
  statistics: str = 'global'
  augmentation: str = 'none'
  class_weight: Optional[str] = None
  metrics: Sequence[str] = ()
  weight_decay: float = 0.0
  decoupled_weight_decay: float = 0.0
  max_gradient_norm: Optional[float] = None
  learning_rate_schedule: str = 'constant'
  server_learning_rate_schedule: str = 'constant'
  personalization: personalization_lib.Personalization = (
    personalization_lib.Personalization()
  )
  initial_run: Optional[str] = None
  initial_run_part: str = hparams_lib.one_of('all', warm_up.INITIAL_RUN_PARTS)
  initial_weights: Optional[str] = None
  num_warmup_rounds: int = hparams_lib.integer(0, 0)
  num_warmup_epochs: Optional[int] = hparams_lib.integer(None, 1)
  num_rounds: int = 100
  cohort_size: Optional[int] = hparams_lib.integer(None, 1)
  dropout_rate: float = 0.0
  rounds_per_evaluation: int = 10
  num_final_evaluations: int = 10
  seed: int = hparams_lib.seed(2**63 - 1)
  runtime: str = runtime_lib.DEFAULT

  def __post_init__(self):
    hparams_lib.check_fields(self)
    algorithm = registry.get_algorithm(self.algorithm)
    if self.hparams is None:
      object.__setattr__(self, 'hparams', algorithm.hparams())
    for name in ('hparams', 'personalization'):
      errors.expect(
        isinstance(getattr(getattr(self, name), 'optimizer', ''), str),
        f'{name}.optimizer',
        'a name, for settings are stored as JSON; give the object to '
        '`registry.build`, and its process to `training.run`',
        getattr(self, name).optimizer,
      )
    errors.expect_own_arguments(
      zoo.MODELS[self.model],
      self.model_arguments,
      'model_arguments',
      f'model {self.model!r}',
    )
    refused = set(algorithm.unsupported)
    if 'num_warmup_rounds' in refused:
      # Its models are drawn apart, which weights of another run do not stand.
      refused |= {'initial_run', 'initial_weights'}
    for field in dataclasses.fields(self):
      if field.name in refused:
        value = getattr(self, field.name)
        wanted = (
          f'{field.default} for {self.algorithm}, which has no use for it'
        )
        errors.expect(value == field.default, field.name, wanted, value)
    if self.initial_run is not None:
      initial_run = os.path.abspath(self.initial_run)
      object.__setattr__(self, 'initial_run', initial_run)
    if self.initial_weights is not None:
      errors.expect(
        self.initial_run is None and self.initial_run_part == 'all',
        'initial_weights',
        'unset with `initial_run` and `initial_run_part`',
        self.initial_weights,
      )
      initial_weights = os.path.abspath(self.initial_weights)
      object.__setattr__(self, 'initial_weights', initial_weights)
    self._set_clients()
    self.training()
    errors.expect_list('metrics', self.metrics)
    object.__setattr__(self, 'metrics', tuple(self.metrics))
    self.sampler()  # Fails early on a cohort larger than the population.
    # Before a warm-up is trained.
    training.expect_room(vars(self.hparams), self.num_clients, self.cohort_size)
    self._make_attack()
    self._check_aggregator()

  def _set_clients(self):
    """Sets the partition and the numbers of clients that are not given."""
    with _naming('dataset_arguments', self.dataset_arguments):
      num_clients, partition = datasets.resolve_clients(
        self.dataset,
        self.num_clients,
        self.partition,
        data_dir=self.data_dir,
        seed=self.seed,
        **self.dataset_arguments,
      )
    object.__setattr__(self, 'num_clients', num_clients)
    object.__setattr__(self, 'partition', partition)
    if self.cohort_size is None:
      object.__setattr__(self, 'cohort_size', min(10, num_clients))

  def _check_aggregator(self):
    """Raises `ValueError` if it does not exist or fit the other settings."""
    if isinstance(self.aggregator, str):
      self._make_aggregator()
      return
    errors.expect_type(
      self.aggregator,
      tuple(privacy.AGGREGATORS.values()),
      'aggregator',
      'a name or a mean of `privacy`, for settings are stored as JSON; give '
      'another to `registry.build`, and its process to `training.run`',
    )
    for name, fits, wanted in (
      (
        'client_weighting',
        self.client_weighting != 'num_examples',
        'uniform or None',
      ),
      ('num_warmup_rounds', self.num_warmup_rounds == 0, '0'),
      ('dropout_rate', self.dropout_rate == 0, '0'),
    ):
      errors.expect(
        fits,
        name,
        f'{wanted} with aggregator {self.aggregator.name}, whose epsilon is of '
        'one run of fixed cohorts among all clients, who weigh the same',
        getattr(self, name),
      )

  def _make_aggregator(self):
    if isinstance(self.aggregator, str):
      return aggregators.make_aggregator(self.aggregator)
    return self.aggregator.factory(self.sampler(), self.num_rounds)

  def accounting(self) -> Optional[privacy.Accounting]:
    """The privacy of the run; None without noise."""
    if isinstance(self.aggregator, str):
      return None
    return self.aggregator.accounting(self.sampler(), self.num_rounds)

  def _make_attack(self):
    return attacks.make_attack(
      self.attack, self.attacked_fraction, self.num_clients, self.seed
    )

  def sampler(self) -> client_sampling.CohortSampler:
    """Makes the sampler of the run's cohorts."""
    return client_sampling.CohortSampler(
      self.num_clients, self.cohort_size, self.seed, self.dropout_rate
    )

  def settings(self) -> dict[str, Any]:
    """The settings as JSON types, for `from_settings`."""
    settings = dataclasses.asdict(self)
    # JSON has no infinity.
    settings['hparams'] = {
      name: str(value) if str(value) in _INFINITIES else value
      for name, value in settings['hparams'].items()
    }
    if not isinstance(self.aggregator, str):
      settings['aggregator'] = {
        'name': self.aggregator.name,
        **settings['aggregator'],
      }
    settings['metrics'] = list(self.metrics)
    settings['dataset_arguments'] = dict(self.dataset_arguments)
    settings['model_arguments'] = {
      name: list(value) if isinstance(value, tuple) else value
      for name, value in self.model_arguments.items()
    }
    return settings

  @classmethod
  def from_settings(cls, settings: Mapping[str, Any]) -> 'RunConfig':
    """Rebuilds the value that `settings` was called on.

    Raises:
      RunError: If the settings are not those of a run of the `train` program.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    # A model without a name is stored as a description.
    own = {name for name in settings if name not in training.RECORDED}
    # Runs of version 0.3 have settings that are gone, most of them unset.
    own -= {name for name in own - names if settings[name] is None}
    if 'trial' in settings:
      raise errors.RunError(
        'Expected a run on all of its data, found one of a comparison that set '
        'new clients, a fold, or examples for a sweep, apart from them.'
      )
    if own != names or not isinstance(settings['model'], str):
      raise errors.RunError(
        'Expected a run of this version of the train program; this one was '
        'made by another version or another program, and only that one can '
        'build its model and data again.'
      )
    algorithm = registry.get_algorithm(settings['algorithm'])
    hparams = {
      name: float(value) if value in _INFINITIES else value
      for name, value in settings['hparams'].items()
    }
    aggregator = settings['aggregator']
    if not isinstance(aggregator, str):
      aggregator = dict(aggregator)
      aggregator = privacy.AGGREGATORS[aggregator.pop('name')](**aggregator)
    return cls(
      **{
        **{name: settings[name] for name in own},
        'aggregator': aggregator,
        'hparams': algorithm.hparams(**hparams),
        'personalization': personalization_lib.Personalization(
          **settings['personalization']
        ),
      }
    )

  def load_data(self, num_more_clients: int = 0) -> datasets.FederatedDataset:
    """Loads the data and divides them among the clients.

    Args:
      num_more_clients: Number of clients besides those of the run.
    """
    with _naming('dataset_arguments', self.dataset_arguments):
      return datasets.load_dataset(
        self.dataset,
        num_clients=self.num_clients + num_more_clients,
        partition=self.partition,
        data_dir=self.data_dir,
        seed=self.seed,
        **self.dataset_arguments,
      )

  def build_model(
    self, data: datasets.FederatedDataset
  ) -> split_model.SplitModel:
    """Makes the model for the data's shapes, their domains and classes."""
    with _naming('model_arguments', self.model_arguments):
      model = zoo.make_model(
        self.model,
        data.element_spec,
        data.num_classes,
        self.seed,
        **self.model_arguments,
      )
    model = client_metrics.with_metrics(model, self.metrics)
    if self.class_weight is not None:
      model = class_weights.with_class_weight(model, self.class_weight, data)
    if 'weight' in data.element_spec:
      model = class_weights.with_sample_weight(model)
    model = augmentation.augmented(model, self.augmentation)
    return domain_models.domain_model(
      domain_models.with_domains(model, data),
      self.domain_model,
      reweighted=self.reweight_domains,
    )

  def build_process(
    self, model: split_model.SplitModel
  ) -> personalized_process.PersonalizedProcess:
    """Builds the method's process.

    Args:
      model: Model that `build_model` made, with any weights.
    """
    with _naming('hparams', vars(self.hparams)):
      return registry.build(
        self.algorithm,
        model,
        self.hparams,
        aggregator=self._make_aggregator(),
        training_metrics=getattr(self.aggregator, 'metrics', 'plain'),
        attack=self._make_attack(),
        client_weighting=self.client_weighting,
        stateless=self.stateless,
        server_optimizer=phases.build_optimizer(
          self.server_optimizer,
          self.server_learning_rate,
          self.server_momentum,
          role='server_',
        ),
        personalization=self.personalization,
        training=self.training(),
        statistics=self.statistics,
        server_schedule=schedules.make_schedule(
          self.server_learning_rate_schedule, 'server_learning_rate_schedule'
        ),
        seed=self.seed,
      )

  def training(self) -> training_options.TrainingOptions:
    """The options of the clients' training that all methods have."""
    return training_options.TrainingOptions(
      self.weight_decay,
      self.decoupled_weight_decay,
      self.max_gradient_norm,
      schedules.make_schedule(self.learning_rate_schedule),
    )

  def run(self, output_dir: str, **options: Any) -> run_lib.Run:
    """Trains, after the warm-up if there is one.

    Args:
      output_dir: Folder of the run.
      **options: Arguments of `training.run`: `runtime_options`, `resume` and
        `show_progress`, and, for the run but not its warm-up, `keep_best` and
        `callbacks`.
    """
    output_dir = folders.results_folder(output_dir, folders.RUN)
    data = self.load_data()
    own = {n: options.pop(n) for n in _RUN_ARGUMENTS if n in options}
    model = warm_up.run(self, data, output_dir, **options)
    return self.run_process(
      self.build_process(model), data, output_dir, **own, **options
    )

  def run_process(
    self,
    process: personalized_process.PersonalizedProcess,
    data: datasets.FederatedDataset,
    output_dir: str,
    *,
    more_settings: Optional[Mapping[str, Any]] = None,
    **options: Any,
  ) -> run_lib.Run:
    """Trains with a process and data that these settings made.

    Args:
      process: Process that `build_process` made.
      data: Data that `load_data` loaded, or a part of them.
      output_dir: Folder of the run.
      more_settings: Further settings to store, which tell the part of the data.
      **options: Further arguments of `training.run`.
    """
    checksum = {}
    if self.initial_weights is not None:
      # Other weights are another run, whatever file they came from.
      checksum['initial_weights_sha256'] = description.weights_checksum(
        process.model
      )
    run = training.run(
      process,
      data,
      output_dir=output_dir,
      num_rounds=self.num_rounds,
      cohort_size=self.cohort_size,
      dropout_rate=self.dropout_rate,
      rounds_per_evaluation=self.rounds_per_evaluation,
      num_final_evaluations=self.num_final_evaluations,
      runtime=self.runtime,
      accounting=self.accounting(),
      settings={
        **self.settings(),
        # With what the method does by itself spelt out.
        'personalization': process.description['personalization'],
        **checksum,
        **(more_settings or {}),
      },
      **options,
    )
    return run.with_config(self)


def _naming(owner, arguments):
  """Has errors name arguments as parts of the setting that has them."""
  return errors.naming({name: f'`{owner}.{name}`' for name in arguments})
