"""All settings of a run as one value, stored with the run.

    pfl.Settings(
      dataset='digits', partition='shards:2', num_clients=30,
      method='fed_rep', num_head_epochs=5, num_rounds=20, cohort_size=5,
    ).run('my_run')

The stored settings rebuild a run's data, model and process, to resume the run
or to use its personal models.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Annotated, Any, Optional

import pydantic
import tqdm

from tff_pfl import datasets, errors, fields
from tff_pfl.core import (
  aggregators,
  client_sampling,
  personalized_process,
  process_options,
)
from tff_pfl.methods import registry
from tff_pfl.models import (
  augmentation,
  class_weights,
  client_metrics,
  description,
  domain_models,
  split_model,
  weight_files,
  zoo,
)
from tff_pfl.runs import loop, run_store
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import start as start_lib
from tff_pfl.system import folders

# After the known names of datasets and models.
_OR_YOURS = (
  ", or your own after the import of its module (a study takes modules=['FILE"
  ".py'], a program --modules=FILE.py)"
)
# A run stores these separately from its settings.
_STORED_APART = ('rounds', 'seed')


def _naming(owner, arguments):
  """Makes errors name arguments as parts of their setting."""
  return errors.naming({name: f'`{owner}.{name}`' for name in arguments})


def _arguments(name):
  return Annotated[fields.Arguments, fields.FlatName(name)]


@fields.dataclass
class DataOptions:
  """Data of a run, and their partition among clients.

  Attributes:
    name: The dataset.
    data_dir: Folder with the dataset's files, if it reads any, or the file
      itself.
    arguments: The loader's own arguments, such as the length of sequences, and
      `classes`, see `datasets.load_dataset`.
    partition: Partition of the data among clients. None means natural if the
      data name their clients, and otherwise shards:2 (iid for a table).
    num_clients: Number of clients. None means all clients of the natural
      partition, and otherwise 30.
  """

  name: Annotated[
    fields.one_of(datasets.DATASETS, _OR_YOURS), fields.FlatName('dataset')
  ] = 'digits'
  data_dir: Optional[fields.Path] = None
  arguments: _arguments('dataset_arguments') = dataclasses.field(
    default_factory=dict
  )
  partition: Optional[fields.checked(str, datasets.make_partitioner)] = None
  num_clients: Optional[fields.Count] = None

  def __post_init__(self):
    apart = {'data_dir', 'num_clients', 'partition', 'seed'}
    errors.expect(
      not apart & set(self.arguments),
      'dataset_arguments',
      f'without {", ".join(sorted(apart))}, which are separate settings',
      self.arguments,
    )


@fields.dataclass
class ModelOptions:
  """Model of a run, and how it uses its data.

  Attributes:
    name: The network: linear, mlp, cnn (the 5-layer CNN of FedRep, or other
      convolutions), resnet_18, resnet_34 and vgg_16 (with group normalization,
      or as in torchvision), image_and_record (a residual network with the
      columns of a record), text_mlp (on the mean of the words' embeddings), or
      text_lstm (on characters or words).
    arguments: The model's own arguments.
    domain_model: How the model uses domains. shared ignores them, multi_head
      has a head for each domain, and input feeds the domain to the head with
      the features.
    reweight_domains: True to give all domains equal weight in the loss when all
      of the model's weights are trained together.
    augmentation: Random changes of images in training, redrawn in each step:
      none, crop:<padding>, flip, or several joined by +.
    class_weight: Class weights in the training loss, not in reported losses:
      balanced, or weights such as 0:1,1:10, or no:1,yes:10 for classes with
      names. None weights all classes equally.
    metrics: Further metrics to report, such as auc,f1_macro or rmse,r2, and
      Keras metrics that are means over examples, such as mse and
      top_5_accuracy.
  """

  name: Annotated[
    fields.one_of(zoo.MODELS, _OR_YOURS), fields.FlatName('model')
  ] = 'mlp'
  arguments: _arguments('model_arguments') = dataclasses.field(
    default_factory=dict
  )
  domain_model: fields.one_of(domain_models.KINDS) = 'shared'
  reweight_domains: bool = False
  augmentation: str = 'none'
  class_weight: Optional[str] = None
  metrics: fields.Words = ()

  def __post_init__(self):
    make = zoo.MODELS[self.name]
    known = errors.own_arguments(make)
    with _naming('model_arguments', self.arguments):
      for name in self.arguments:
        if name not in known:
          raise TypeError(fields.unknown_name(name, known))
      fields.arguments_of(make)(**self.arguments)


def _hparams_of(value):
  """Hyperparameters from a method's name, JSON types, or themselves."""
  if isinstance(value, str):
    return registry.get_algorithm(value).hparams()
  if isinstance(value, Mapping):
    values = dict(value)
    name = values.pop('name')
    if name not in registry.ALGORITHMS:
      raise errors.RunError(
        f'The method {name!r} is not known here: import the module that '
        "registers it first. (A study takes modules=['FILE.py'], a program "
        '--modules=FILE.py.)'
      )
    method = registry.get_algorithm(name)
    return fields.from_json(method.hparams, values)
  registry.method_of(value)
  return value


def _hparams_to_json(value):
  return {'name': registry.method_of(value), **vars(value)}


# A method's hyperparameters, which know their method, or its name.
Method = Annotated[
  Any,
  pydantic.BeforeValidator(_hparams_of),
  pydantic.PlainSerializer(_hparams_to_json),
]


@fields.dataclass
class Settings:
  """The settings of a run.

  You can give fields of the parts, and the method's hyperparameters, by name
  alone, as in the module's example. This also works in `dataclasses.replace`.

  Attributes:
    data: Data and their partition.
    model: Model and its metrics.
    method: The method's hyperparameters, `get_algorithm(name).hparams(...)`, or
      its name for the defaults.
    process: Options that every method's process takes.
    rounds: Rounds, cohorts and evaluations.
    start: Model that the run starts from.
    seed: Seed of the partition, the initial weights, the cohorts and all client
      work, from 0 to 2**63 - 1.
  """

  data: DataOptions = DataOptions()
  model: ModelOptions = ModelOptions()
  method: Method = dataclasses.field(
    default_factory=lambda: _hparams_of('fed_rep')
  )
  process: process_options.ProcessOptions = process_options.ProcessOptions()
  rounds: loop.RunOptions = loop.RunOptions()
  start: start_lib.Start = start_lib.Start()
  seed: fields.Seed = 0

  @classmethod
  def arranged(cls, values: dict[str, Any]) -> dict[str, Any]:
    """Moves values with the names of flags into the fields.

    Args:
      values: Values by name: fields of `Settings` and its parts,
        hyperparameters, and arguments of the model and the dataset such as
        `model_widths`.
    """
    method = _hparams_of(values.get('method', 'fed_rep'))
    known = fields.flat_names(cls)
    # A setting that a method does not support may be the name of one of its
    # hyperparameters.
    algorithm = registry.method_of(method)
    unsupported = registry.get_algorithm(algorithm).unsupported
    ambiguous = ({*vars(method)} & {*known}) - {*unsupported}
    errors.expect(
      not ambiguous,
      'method',
      'one whose hyperparameters have names that no other setting has',
      f'{algorithm} with {", ".join(sorted(ambiguous))}',
    )
    own = {
      name: value
      for name, value in values.items()
      if name not in known or name in vars(method)
    }
    values = {n: v for n, v in values.items() if n not in own}
    values['method'], own = registry.with_values(method, own)
    for kind, part in (('model', 'model'), ('dataset', 'data')):
      names = [name for name in own if name.startswith(f'{kind}_')]
      arguments = getattr(values.get(part), 'arguments', {})
      arguments = {**arguments, **values.get(f'{kind}_arguments', {})}
      for name in names:
        arguments[name.removeprefix(f'{kind}_')] = own.pop(name)
      if names:
        values[f'{kind}_arguments'] = arguments
    for name in own:
      raise TypeError(fields.unknown_name(name, [*vars(method), *known]))
    return values

  def __post_init__(self):
    fields.to_json(self)
    errors.expect(
      not isinstance(self.process.aggregator, aggregators.FACTORIES),
      'aggregator',
      'a name, a PrivateMean or a DistributedPrivateMean, because settings are '
      'stored as JSON (give the factory to `pfl.build`)',
      self.process.aggregator,
    )
    algorithm = registry.get_algorithm(self.algorithm)
    for name in algorithm.unsupported:
      names = (name,)
      if name == 'num_warmup_rounds':
        # Its models start from different random weights, so they cannot start
        # from the weights of another run.
        names = (name, 'initial_run', 'initial_weights')
      for one in names:
        value, default = fields.get(self, one), fields.default(Settings, one)
        expected = f'{default} for {self.algorithm}, which does not use it'
        errors.expect(value == default, one, expected, value)
    errors.expect(
      self.start.num_warmup_rounds == 0
      or isinstance(self.process.aggregator, str),
      'num_warmup_rounds',
      '0 with an aggregator with noise, whose epsilon is for one run',
      self.start.num_warmup_rounds,
    )
    errors.expect(
      self.start.initial_run is None
      or self.start.initial_run_part == 'body'
      or not getattr(self.method, 'projection_dim', None),
      'initial_run_part',
      "'body' with `projection_dim`, whose projection and head start at random",
      self.start.initial_run_part,
    )

  @property
  def algorithm(self) -> str:
    """The name of the method."""
    return registry.method_of(self.method)

  def to_record(self) -> dict[str, Any]:
    """The settings that a run stores in addition to its rounds and seed."""
    stored = fields.to_json(self)
    return {n: v for n, v in stored.items() if n not in _STORED_APART}

  @classmethod
  def from_record(cls, record: Mapping[str, Any]) -> Settings:
    """The settings of a run, from its record.

    Raises:
      RunError: If the record does not describe the run's data and model.
    """
    if 'settings' not in record:
      raise errors.RunError(
        'A run that was made in Python has no description of its model and '
        'data.'
      )
    if 'trial' in record:
      raise errors.RunError(
        'Expected a run on all of its data, found one of a comparison that set '
        'new clients, a fold, or examples for a sweep apart.'
      )
    own = {name: record[name] for name in _STORED_APART}
    return fields.from_json(cls, {**record['settings'], **own})

  def load_data(self, num_more_clients: int = 0) -> datasets.FederatedDataset:
    """Loads the data and divides them among the clients.

    Args:
      num_more_clients: Number of clients in addition to the run's. If
        `num_clients` is None, they are among the existing clients.
    """
    options = self.data
    arguments = {'data_dir': options.data_dir, 'seed': self.seed}
    arguments.update(options.arguments)
    num_clients = options.num_clients
    if num_clients is not None:
      num_clients += num_more_clients
    with _naming('dataset_arguments', options.arguments):
      return datasets.load_dataset(
        options.name,
        num_clients=num_clients,
        partition=options.partition,
        **arguments,
      )

  def build_model(
    self, data: datasets.FederatedDataset
  ) -> split_model.SplitModel:
    """Makes the model for the data's shapes, domains and classes."""
    options = self.model
    with _naming('model_arguments', options.arguments):
      model = zoo.make_model(
        options.name,
        data.element_spec,
        data.num_classes,
        self.seed,
        **options.arguments,
      )
    model = client_metrics.with_metrics(model, options.metrics)
    if options.class_weight is not None:
      model = class_weights.with_class_weight(model, options.class_weight, data)
    if 'weight' in data.element_spec:
      model = class_weights.with_sample_weight(model)
    model = augmentation.augmented(model, options.augmentation)
    return domain_models.domain_model(
      domain_models.with_domains(model, data),
      options.domain_model,
      reweighted=options.reweight_domains,
    )

  def expect_fit(self, data: datasets.FederatedDataset) -> None:
    """Raises `ValueError` if the method is for other numbers of clients."""
    loop.expect_fit(
      vars(self.method), self.rounds.cohorts(data.num_clients, self.seed)
    )

  def build_process(
    self, model: split_model.SplitModel, data: datasets.FederatedDataset
  ) -> personalized_process.PersonalizedProcess:
    """Builds the method's process.

    Args:
      model: Model that `build_model` made, with any weights.
      data: The run's data, for the number of clients and their first rounds.
    """
    with _naming('hparams', vars(self.method)):
      return registry.build(
        self.algorithm,
        model,
        self.method,
        options=self.process,
        seed=self.seed,
        cohorts=self.rounds.cohorts(
          data.num_clients, self.seed, client_sampling.join_rounds_of(data)
        ),
        num_rounds=self.rounds.num_rounds,
      )

  @fields.checked_call
  def run(
    self,
    output_dir: str,
    *,
    data: Optional[datasets.FederatedDataset] = None,
    record: Optional[Mapping[str, Any]] = None,
    **options: Any,
  ) -> run_lib.Run:
    """Trains, after the warm-up if there is one.

    Args:
      output_dir: Folder of the run.
      data: Data from `load_data`, or a part of them. None loads the data. Give
        other data to `open_run` again, with the process.
      record: Identification of the part of the data, as JSON types.
      **options: Arguments of `pfl.run`: `callbacks` (not for the warm-up),
        `resume`, `runtime_options`, `show_progress` and `pictures`. Fields of
        `RunOptions` override the settings' own.
    """
    changes = {n: options.pop(n) for n in vars(self.rounds) if n in options}
    if changes:
      changed = dataclasses.replace(self, **changes)
      return changed.run(output_dir, data=data, record=record, **options)
    output_dir = folders.results_folder(output_dir, folders.RUN)
    if not options.get('resume'):
      run_store.expect_none(output_dir)
    data = self.load_data() if data is None else data
    # Before the warm-up, which may be long.
    self.expect_fit(data)
    model = self._begin(data, output_dir, record, options)
    return self._train(
      self.build_process(model, data), data, output_dir, record, options
    )

  def resume(
    self, output_dir: str, *, num_rounds: int, **options: Any
  ) -> run_lib.Run:
    """Continues a run to more rounds, see `run`."""
    more = dataclasses.replace(self, num_rounds=num_rounds)
    return more.run(output_dir, resume=True, **options)

  def _train(self, process, data, output_dir, record, options):
    checksum = {}
    if self.start.initial_weights is not None:
      # The weights identify the run, and not the path of their file.
      checksum['initial_weights_sha256'] = description.weights_checksum(
        process.model
      )
    return loop.run(
      process,
      data,
      output_dir,
      options=self.rounds,
      settings=self,
      record={**checksum, **(record or {})},
      **options,
    )

  # The start of the run.

  def _begin(self, data, folder, record, options):
    """The run's initial model, after its start is copied or trained."""
    if run_store.has_run(folder):
      return self.initial_model(data, folder)
    if self.start.num_warmup_rounds:
      warm_up, before = self._warm_up(), os.path.join(folder, start_lib.FOLDER)
      model = self._projected(warm_up._begin(data, before, record, options))
      if options.get('show_progress', True):
        tqdm.tqdm.write(f'Warm-up of {self.algorithm}:')
      process = warm_up.build_process(model, data)
      options = {**options, 'callbacks': (), 'pictures': False}
      warm_up._train(process, data, before, record, options)
      return self._warmed_up(model, process, before)
    if self.start.has_weights:
      model, start = self.build_model(data), self.start
      if start.initial_run is None:
        model = weight_files.with_weights(model, start.initial_weights)
        weights = model.initial_weights
      else:
        weights = start_lib.weights_of_run(
          model,
          open_run(start.initial_run),
          start.initial_run_part,
          data,
        )
      start_lib.keep(weights, folder)
    return self.initial_model(data, folder)

  def initial_model(
    self, data: datasets.FederatedDataset, folder: str
  ) -> split_model.SplitModel:
    """The model with the weights that the run's method starts from.

    Args:
      data: Data of the run.
      folder: Folder of the run, which has begun.

    Raises:
      ValueError: If the stored weights are damaged.
      RunError: If they are missing, or the warm-up is missing, damaged or has
        another length.
    """
    if not self.start.num_warmup_rounds:
      model = self.build_model(data)
      if self.start.has_weights:
        model = start_lib.with_kept(model, folder)
      return model
    warm_up, before = self._warm_up(), os.path.join(folder, start_lib.FOLDER)
    model = self._projected(warm_up.initial_model(data, before))
    return self._warmed_up(model, warm_up.build_process(model, data), before)

  def _warmed_up(self, model, process, folder):
    """The run's model with the final weights of its warm-up."""
    model = start_lib.with_warmed_up(
      model, process, folder, self.start.num_warmup_rounds
    )
    return domain_models.domain_model(
      model, self.model.domain_model, reweighted=self.model.reweight_domains
    )

  def _projected(self, model):
    """The warm-up's model, with a projection if the method has one."""
    dimension = getattr(self.method, 'projection_dim', None)
    return domain_models.projected(model, dimension) if dimension else model

  def _warm_up(self) -> Settings:
    """The settings of the run's warm-up."""
    start, hparams = self.start, self.method
    training = start_lib.warm_up_training(hparams)
    if start.num_warmup_epochs is not None:
      training |= {'num_epochs': start.num_warmup_epochs, 'num_steps': None}
    return dataclasses.replace(
      self,
      method=registry.get_algorithm('fed_avg').hparams(**training),
      domain_model='shared',
      reweight_domains=(
        self.model.reweight_domains
        or getattr(hparams, 'reweight_domains', False)
      ),
      stateless=False,
      learning_rate_schedule='constant',
      server_learning_rate_schedule='constant',
      num_rounds=start.num_warmup_rounds,
      num_final_evaluations=1,
      keep_best=False,
      num_warmup_rounds=0,
      num_warmup_epochs=None,
    )


@fields.checked_call
def open_run(
  directory: str,
  process: Optional[personalized_process.PersonalizedProcess] = None,
  data: Optional[datasets.FederatedDataset] = None,
  *,
  data_dir: Optional[str] = None,
) -> run_lib.Run:
  """Opens the run in a folder, which may be in progress.

  Args:
    directory: The run's folder.
    process: Process that trained the run, for the models of a run of `pfl.run`,
      which cannot rebuild a custom model. None is enough for a run of
      `Settings` or the `train` program, or for results alone.
    data: Data on which it was trained, given together with `process`.
    data_dir: Folder of the dataset's files, if it has moved.

  Raises:
    RunError: If there is no run, or it was trained on other data, by another
      process or from other initial weights.
  """
  directory = folders.local_path(directory, 'directory')
  parent, name = os.path.split(os.path.abspath(directory))
  if name == run_lib.BEST_NAME and run_store.has_run(parent):
    return open_run(parent, process, data, data_dir=data_dir).best
  errors.expect(
    (process is None) == (data is None),
    'process',
    'given together with data',
    process,
  )
  with run_store.RunStore.open_for_reading(directory) as store:
    record = store.config
    if data is not None:
      loop.check_unchanged(process, data, store)
  if process is not None:
    options = fields.from_json(loop.RunOptions, record['rounds'])
    continue_with = functools.partial(
      loop.run, process, data, directory, options=options, resume=True
    )
    return run_lib.Run(
      directory, process=process, data=data, continue_with=continue_with
    )
  try:
    settings = Settings.from_record(record)
  except errors.RunError as error:
    return run_lib.Run(directory, no_settings=str(error))
  if data_dir is not None:
    settings = dataclasses.replace(settings, data_dir=data_dir)
  continue_with = functools.partial(settings.resume, directory)
  return run_lib.Run(directory, settings=settings, continue_with=continue_with)
