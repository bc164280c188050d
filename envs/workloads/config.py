"""Workload configurations: what a person writes about the requests that arrive."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from .. import catalog
from ..targets import Targets
from .arrivals import Arrivals, Poisson
from .lengths import LengthLaw

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Family(BaseModel):
    """Requests of one kind.

    Attributes:
        prompt: law of the prompt length.
        output: law of the output length.
        tight_share: share of requests of the class tight.
    """

    model_config = STRICT

    prompt: LengthLaw
    output: LengthLaw
    tight_share: float = Field(ge=0, le=1)


class WorkloadConfig(BaseModel):
    """A workload: one family (its fields given here), or a mix of other workloads' families.

    Attributes:
        name: for messages and reports.
        arrivals: of all requests; in a mix each request's family is drawn independently.
        prompt: of a single family.
        output: of a single family.
        tight_share: of a single family.
        mix: share of each family, by workload name; shares are normalised.
        targets: fixed (by class, from the profile) or relative (to what a request needs alone).
        profile: sets the targets unless another is given.
        cluster: what it runs on unless a topology, cluster or profile is given; None: 2P4D of the profile.
        notes: where the numbers come from.
    """

    model_config = STRICT

    name: Annotated[str, AfterValidator(catalog.check_name)]
    arrivals: Arrivals = Poisson()
    prompt: LengthLaw | None = None
    output: LengthLaw | None = None
    tight_share: float | None = Field(None, ge=0, le=1)
    mix: dict[str, float] | None = None
    targets: Targets = "fixed"
    profile: str = "a40-qwen2.5-3b"
    cluster: str | None = None
    notes: str = ""

    @model_validator(mode="after")
    def _family_or_mix(self) -> WorkloadConfig:
        own = {key: getattr(self, key) for key in ("prompt", "output", "tight_share")}
        if self.mix is None:
            for key, value in own.items():
                if value is None:
                    raise ValueError(f"{key} is missing; give prompt, output and tight_share, or a mix")
        else:
            if any(value is not None for value in own.values()):
                raise ValueError("mix stands beside prompt, output or tight_share; give a mix or a family")
            if not 1 <= len(self.mix) <= 127:
                raise ValueError(f"mix has {len(self.mix)} families; it must have 1 to 127")
            for family, share in self.mix.items():
                if not 0 < share < float("inf"):
                    raise ValueError(f"mix.{family} is {share}; a share must be greater than 0")
        return self

    def families(self) -> dict[str, Family]:
        """The families by name.

        Raises:
            ValueError: the mix names an unknown workload, or one that is a mix itself.
        """
        if self.mix is None:
            assert self.prompt is not None and self.output is not None and self.tight_share is not None
            return {self.name: Family(prompt=self.prompt, output=self.output, tight_share=self.tight_share)}
        found = {}
        for name in self.mix:
            part = load(name)
            if part.mix is not None:
                raise ValueError(f"{self.name}: mix names {name!r}, a mix itself; name single families")
            found[name] = part.families()[part.name]
        return found


def load(name_or_path: str, **overrides: Any) -> WorkloadConfig:
    """The workload of this name or in this YAML file, with some fields changed.

    A file may name another as its `base` and give only what differs. Nested mappings are merged;
    `arrivals` that name another process replace the old ones whole.

    Raises:
        ValueError: unknown name (with the nearest ones), unreadable file, or a field out of range.
    """
    return catalog.validate(WorkloadConfig, _changed(_document(name_or_path, ()), overrides), name_or_path)


def _document(name_or_path: str, above: tuple[str, ...]) -> dict[str, Any]:
    if name_or_path in above:
        raise ValueError(f"{name_or_path}: base leads back to itself ({' -> '.join(above)})")
    data = catalog.read("workloads", name_or_path)
    base = data.pop("base", None)
    return data if base is None else _changed(_document(str(base), (*above, name_or_path)), data)


def _changed(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = catalog.merge(data, changes)
    old, new = data.get("arrivals"), changes.get("arrivals")
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and new.get("process") not in (None, old.get("process"))
    ):
        merged["arrivals"] = new
    if changes.get("mix") is not None:
        merged["mix"] = changes["mix"]
    return merged
