"""Training configurations: what a person writes about a training run, checked before anything begins.

Fields that all methods share are here; a method's module (`methods.py`) adds its own under `parameters`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ... import __version__
from ...envs import catalog
from ...envs.features import VERSION as FEATURES_VERSION
from ...envs.scenario import Scenario
from ...envs.setting import Setting
from ...policies import registry
from ..evaluation import check_pools, policy_card
from ..runs import RESULTS_SCHEMA
from ..seeds import MAX_SEED, TUNING, VALIDATION, seeds_from
from ..source_hash import source_hash

SCHEMA_VERSION = 1
"""Version of the fields of a training configuration."""

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainingScenario(Scenario):
    """A scenario, and how often and how hard it is trained on.

    Attributes:
        name: for tables; by default workload and cluster, and what differs from the usual.
        saturation: true: the rate is the stored saturation rate of this workload on this cluster; a name: on the
            cluster of that name. Otherwise `rate` says it.
        factor: the saturation rate is multiplied by this.
        weight: of this scenario among the others.
        baseline: policy that learning is compared with here; by default the first one of the validation.
    """

    model_config = STRICT

    name: Annotated[str, AfterValidator(catalog.check_name)] | None = None
    saturation: bool | str = False
    factor: float = Field(1.0, gt=0, le=100)
    weight: float = Field(1.0, gt=0, le=1e6)
    baseline: str | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> TrainingScenario:
        if (self.rate is None) == (self.saturation is False):
            both = "missing" if self.rate is None else "given"
            raise ValueError(f"rate and saturation are both {both}; one of them says how hard the cluster is driven")
        if self.saturation is False and self.factor != 1:
            raise ValueError(f"factor is {self.factor:g}, but rate is {self.rate:g}; it multiplies a saturation rate")
        return self

    @property
    def plain(self) -> Scenario:
        """The scenario alone, at its rate.

        Raises:
            ValueError: the saturation rate is not stored, or the workload is a recorded trace.
        """
        own = set(TrainingScenario.model_fields) - set(Scenario.model_fields)
        scenario = Scenario.make(**self.model_dump(exclude=own))
        setting = Setting.of(scenario)
        if setting.traffic.single:
            raise ValueError(
                f"workload is {self.workload}, one recorded trace; training needs a workload that gives a trace "
                "for every seed"
            )
        if self.saturation is False:
            return scenario
        reference = setting
        if isinstance(self.saturation, str):
            reference = Setting.of(
                Scenario.make(workload=self.workload, cluster=self.saturation, targets=self.targets)
            )
        rate = reference.stored_rate
        if rate is None:
            raise ValueError(
                f"saturation is {self.saturation!r}, but no rate is stored for {setting.traffic.name} on "
                f"{reference.cluster.name}; `disaggroute saturate` finds it: give it as rate"
            )
        return scenario.at_rate(rate * self.factor)

    @property
    def label(self) -> str:
        """Its name."""
        if self.name is not None:
            return self.name
        words = [Setting.of(self.plain).name]
        words += [f"{self.factor:g}x"] * (self.factor != 1)
        words += [self.predictor] * (self.predictor != Scenario.model_fields["predictor"].default)
        return " ".join(words)

    @property
    def folder(self) -> str:
        """Its name, as that of a folder."""
        return re.sub(r"[^\w.-]+", "-", self.label)


class PolicyConfig(BaseModel):
    """Which policy is trained, and from where.

    Attributes:
        name: linear or network.
        hidden: widths of the hidden layers of a network.
        start: a policy to begin with, such as `linear@mixed-bursty`; a network can begin with a linear one.
    """

    model_config = STRICT

    name: Literal["linear", "network"]
    hidden: tuple[Annotated[int, Field(ge=1, le=256)], ...] | None = Field(None, min_length=1, max_length=2)
    start: str | None = None

    @model_validator(mode="after")
    def _only_networks_have_layers(self) -> PolicyConfig:
        if self.name == "linear" and self.hidden is not None:
            raise ValueError(f"hidden is {list(self.hidden)}, but name is linear; only a network has hidden layers")
        return self


class TrainingSeeds(BaseModel):
    """Seeds of the traces that are trained on, taken in order and again from the start after the last.

    Attributes:
        first: the first one.
        last: the last one.
    """

    model_config = STRICT

    first: int = TUNING.first
    last: int = TUNING.last

    @model_validator(mode="after")
    def _for_training(self) -> TrainingSeeds:
        if self.last < self.first:
            raise ValueError(f"last is {self.last}; it must be at least first, which is {self.first}")
        seeds_from(self.first, self.last - self.first + 1, within=TUNING)
        return self

    def take(self, start: int, count: int) -> tuple[int, ...]:
        """`count` seeds from number `start` on."""
        size = self.last - self.first + 1
        return tuple(self.first + (start + k) % size for k in range(count))


class Validation(BaseModel):
    """On what the choice among the candidates is made.

    Attributes:
        seeds: traces of each scenario.
        first_seed: of them.
        duration_s: length of their measurement window.
        scenarios: on which; none: those that are trained on.
        baselines: policies that run along; a scenario without a baseline of its own is compared with the first one.
    """

    model_config = STRICT

    seeds: int = Field(20, ge=1)
    first_seed: int = VALIDATION.first
    duration_s: float = Field(1_800.0, gt=0, le=1e6)
    scenarios: tuple[TrainingScenario, ...] = ()
    baselines: tuple[str, ...] = Field(("least-loaded",), min_length=1)

    @model_validator(mode="after")
    def _for_validation(self) -> Validation:
        seeds_from(self.first_seed, self.seeds, within=VALIDATION)
        return self

    @property
    def traces(self) -> range:
        """The seeds."""
        return seeds_from(self.first_seed, self.seeds, within=VALIDATION)


def _as_mapping(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class TrainingConfig(BaseModel):
    """What all methods have in common; each method's `Config` adds `method` and `parameters`.

    Attributes:
        schema_version: `SCHEMA_VERSION`.
        name: of the configuration, for folders and titles.
        method: how it is trained (`methods.names()`).
        policy: what is trained; a name alone stands for its defaults.
        scenarios: what it is trained on.
        seeds: of the traces.
        training_seed: seed of everything random in the training; several training seeds count up from it.
        budget: how much training there is, in the method's unit.
        checkpoint_every: units between checkpoints.
        device: where torch computes.
        validation: how the choice is made.
    """

    model_config = STRICT

    schema_version: Literal[1]
    name: Annotated[str, AfterValidator(catalog.check_name)]
    method: str
    policy: Annotated[PolicyConfig, BeforeValidator(_as_mapping)]
    scenarios: tuple[TrainingScenario, ...] = Field(min_length=1)
    seeds: TrainingSeeds = TrainingSeeds()
    training_seed: int = Field(0, ge=0, le=MAX_SEED)
    budget: int = Field(ge=1)
    checkpoint_every: int = Field(10, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    validation: Validation = Validation()

    def check(self) -> None:
        """Looks up all names, so that nothing is found wanting later; a method's `Config` may check more.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        for place, some in (("scenarios", self.scenarios), ("validation.scenarios", self.tested)):
            for k, scenario in enumerate(some):
                with_place(f"{self.name}: {place}.{k}", lambda s=scenario: _check_scenario(s, self.seeds.first))
            labels = [scenario.label for scenario in some]
            twice = [label for label in labels if labels.count(label) > 1]
            if twice:
                raise ValueError(f"{self.name}: {place} holds {twice[0]!r} twice; give each a name of its own")
            folders: dict[str, str] = {}
            for scenario in some:
                alike = folders.setdefault(scenario.folder.lower(), scenario.label)
                if alike != scenario.label or scenario.folder in (".", ".."):
                    reason = "is no name of a folder" if alike == scenario.label else f"has the folder of {alike!r}"
                    raise ValueError(f"{self.name}: {place}: the name {scenario.label!r} {reason}; give it another one")
        for scenario in (*self.scenarios, *self.tested):
            setting = Setting.of(scenario.plain)
            for text in self.baselines(scenario):
                with_place(f"{self.name}: baseline", lambda t=text, s=setting: check_pools(registry.parse(t), s))
            if (start := self.policy.start) is not None:
                with_place(f"{self.name}: policy.start", lambda t=start, s=setting: check_pools(registry.parse(t), s))
        check_device(self.device)

    @property
    def tested(self) -> tuple[TrainingScenario, ...]:
        """Scenarios that the choice is made on."""
        return self.validation.scenarios or self.scenarios

    def baselines(self, scenario: TrainingScenario) -> tuple[str, ...]:
        """Baselines of a scenario, the one that it is compared with first."""
        own = () if scenario.baseline is None else (scenario.baseline,)
        return tuple(dict.fromkeys((*own, *self.validation.baselines)))

    def content(self) -> dict[str, Any]:
        """All that decides what is learned and chosen; JSON-able. Training seeds have folders of their own."""
        names: dict[str, Any] = {
            "version": __version__,
            "code": source_hash(("training/learning",)),
            "results_schema": RESULTS_SCHEMA,
            "features_version": FEATURES_VERSION,
        }
        texts = {text for scenario in (*self.scenarios, *self.tested) for text in self.baselines(scenario)}
        texts |= {self.policy.start} if self.policy.start else set()
        return (
            names
            | self.model_dump(mode="json", exclude={"training_seed"})
            | {
                "traffic": [Setting.of(s.plain).configuration() for s in (*self.scenarios, *self.tested)],
                "policies": {text: policy_card(text)["hash"] for text in sorted(texts)},
            }
        )


def _check_scenario(scenario: TrainingScenario, seed: int) -> None:
    Setting.of(scenario.plain).prepare(seed)


def with_place(place: str, check: Any) -> None:
    """Runs a check and puts the place in front of its complaint.

    Raises:
        ValueError: what the check raised, with the place.
    """
    try:
        check()
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def check_device(device: str) -> None:
    """Refuses a device that is not there.

    Raises:
        ValueError: CUDA is asked for and torch finds none, or torch is missing.
    """
    if device == "cpu":
        return
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"device is {device!r}, but torch is not installed; `pip install 'disaggroute[train]'`, or use cpu"
        ) from None
    if not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch finds no such device here; use cpu")


def changed(data: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """A configuration as it was read, with `KEY=VALUE` applied.

    Args:
        data: what the file holds.
        changes: `a.b=value`, each: the path of a field, with indices into lists, and its value as in YAML.

    Raises:
        ValueError: a change that does not read like that, or whose path leads nowhere.
    """
    for change in changes:
        if isinstance(data.get("policy"), str):
            data = {**data, "policy": _as_mapping(data["policy"])}
        path, given, text = change.partition("=")
        if not given or not path.strip():
            raise ValueError(f"set is {change!r}; it must read like parameters.population=32")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"set is {change!r}; the value must be written as in YAML") from None
        data = _with(data, [part.strip() for part in path.split(".")], value, change)
    return data


def _with(data: Any, path: list[str], value: Any, change: str) -> Any:
    key, rest = path[0], path[1:]
    if isinstance(data, list):
        if not (key.isdecimal() and int(key) < len(data)):
            raise ValueError(f"set is {change!r}; {key!r} must be an index below {len(data)}")
        copy = list(data)
        copy[int(key)] = _with(data[int(key)], rest, value, change) if rest else value
        return copy
    if data is not None and not isinstance(data, dict):
        raise ValueError(f"set is {change!r}; there is no {key!r} inside {data!r}")
    return {**(data or {}), key: _with((data or {}).get(key), rest, value, change) if rest else value}
