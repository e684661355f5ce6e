"""`Bundle`: a file that describes many models behind one endpoint.

The code calls a model of a bundle a *member*. The file and the documentation call it an expert,
a word that the code uses only for mixtures of experts.

`docs/bundle.md` says what each key means; a test compares the two. This module only reads the file;
`bundle.check` decides whether its members can be served here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from common.faults import shown
from common.plain_yaml import Keys, KeysFaulty, float_of, parse_keys
from inference_api.errors import StartupError
from inference_api.settings.model import MIN_CONTEXT_TOKENS, Speculation, readable
from inference_api.settings.sizes import Size

MAX_FILE_BYTES = 256 * 1024
MAX_MEMBERS = 32
MAX_EXAMPLES = 256  # examples of one member
ROUTED = "auto"  # requests to this model leave the choice to the router
Quantisation = Literal["none", "auto", "file", "int8", "int4"]


def _check_name(name: str) -> str:
    if name == ROUTED:
        raise ValueError("is the name of the router; choose another name")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError("has '.', '..' or an empty part between slashes; remove it")
    return name


Seconds = Annotated[float, BeforeValidator(float_of), Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256), AfterValidator(readable)]
Source = Annotated[str, Field(max_length=4096), AfterValidator(readable)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class RowBounds(Keys):
    min: int = Field(1, ge=1, le=256)
    max: int | None = Field(None, ge=1, le=256)

    @field_validator("max")
    @classmethod
    def _check_order(cls, most: int | None, info: ValidationInfo) -> int | None:
        least = info.data.get("min", 1)
        if most is not None and most < least:
            raise ValueError(f"{most} is below min, {least}; give min or more")
        return most


class MemberTarget(Keys):
    source: Source


class MemberDraft(Keys):
    """A small model that drafts tokens for the member."""

    source: Source
    tokens: int | None = Field(None, ge=1, le=32)


class BundleMember(Keys):
    """One model of a bundle; with `draft`, a pair of models under one name."""

    name: Annotated[Name, AfterValidator(_check_name)]
    target: MemberTarget | None = None
    source: Source = Field("", validate_default=True)
    description: str = Field("", max_length=1000)
    examples: Annotated[tuple[Text, ...], Field(strict=False)] = Field((), max_length=MAX_EXAMPLES)
    quantisation: Quantisation = "auto"
    context: int | None = Field(None, ge=MIN_CONTEXT_TOKENS, le=1_048_576)
    rows: RowBounds = RowBounds()
    pinned: bool = False
    load: Literal["start", "demand"] = "demand"
    draft: MemberDraft | None = Field(None, validate_default=True)
    speculation: Speculation | None = Field(None, validate_default=True)
    medusa_heads: Source | None = None

    @field_validator("source", mode="before")
    @classmethod
    def _of_target(cls, source: object, info: ValidationInfo) -> object:
        if "target" not in info.data:
            return "faulty"  # reported already
        target: MemberTarget | None = info.data["target"]
        if target is None:
            if source == "":
                raise ValueError("is missing; give it, or target: {source: ...} with a draft")
            return source
        if source != "":
            raise ValueError("is given next to target; give only one of them")
        return target.source

    @field_validator("draft")
    @classmethod
    def _check_pair(cls, draft: MemberDraft | None, info: ValidationInfo) -> MemberDraft | None:
        if draft is None and info.data.get("target") is not None:
            raise ValueError("is missing next to target; give it, or replace target by source")
        return draft

    @field_validator("speculation")
    @classmethod
    def _check_speculation(cls, mode: Speculation | None, info: ValidationInfo) -> Speculation:
        if "draft" not in info.data:
            return "off"
        has_draft = info.data["draft"] is not None
        if mode is None:
            return "draft" if has_draft else "off"
        if has_draft and mode not in ("draft", "auto"):
            raise ValueError(f"{mode} does not use the draft; give draft or auto, or remove it")
        if mode == "draft" and not has_draft:
            raise ValueError("draft needs a draft model; give draft: {source: ...}")
        return mode

    @property
    def is_loaded_at_start(self) -> bool:
        return self.pinned or self.load == "start"


class RouterSettings(Keys):
    """How a member is chosen for requests to `auto`."""

    method: Literal["tfidf"] = "tfidf"
    threshold: Seconds = Field(0.35, ge=0, le=1)
    fallback: Name | None = None


class Bundle(Keys):
    """The contents of a valid file: names are unique, and `default` and `fallback` name members."""

    version: Literal[1]
    memory_limit: Size
    fast_memory_limit: Size
    patience_s: Seconds = Field(10.0, ge=0, le=3600)
    min_residence_s: Seconds = Field(2.0, ge=0, le=3600)
    load_timeout_s: Seconds = Field(120.0, ge=1, le=86_400)
    max_queue: int = Field(256, ge=1, le=4096)
    default: Name | None = None
    members: Annotated[tuple[BundleMember, ...], Field(strict=False)] = Field(
        alias="experts", max_length=MAX_MEMBERS
    )
    router: RouterSettings | None = None

    _folder: Path | None = PrivateAttr(None)

    @field_validator("members")
    @classmethod
    def _check_number(cls, members: tuple[BundleMember, ...]) -> tuple[BundleMember, ...]:
        if not members:  # `min_length` would not count members with faults
            raise ValueError("has no entries; give 1 or more")
        return members

    @property
    def default_member(self) -> BundleMember:
        return next((each for each in self.members if each.name == self.default), self.members[0])

    def member(self, name: str) -> BundleMember:
        """Returns the member with this name, which must exist."""
        return next(each for each in self.members if each.name == name)

    @property
    def folder(self) -> Path | None:
        """The folder of the bundle's file."""
        return self._folder

    def from_folder(self, folder: Path) -> Self:
        """Returns the bundle of a file in `folder`: sources that exist there get absolute paths."""

        def found(source: str) -> str:
            path = folder / source
            try:
                return str(path) if path.exists() else source
            except (OSError, ValueError):  # for example, a hub id that is too long for a file name
                return source

        bundle = self.with_sources(found)
        bundle._folder = folder
        return bundle

    def with_sources(self, change: Callable[[str], str]) -> Self:
        """Returns a copy with `change` applied to every source."""
        members = tuple(_with_sources(each, change) for each in self.members)
        return self.model_copy(update={"members": members})

    def row_faults(self, user_rows: int) -> list[str]:
        """Returns why `user_rows` rows are too few for the members; empty if they suffice."""
        faults = []
        guaranteed = sum(each.rows.min for each in self.members)
        if guaranteed > user_rows:
            faults.append(
                f"rows.min: need {guaranteed} rows, limit USER_ROWS={user_rows}, over by "
                f"{guaranteed - user_rows}; lower rows.min or raise USER_ROWS."
            )
        for index, each in enumerate(self.members):
            if (each.rows.max or 0) > user_rows:
                faults.append(
                    f"experts[{index}].rows.max: {each.rows.max} is above USER_ROWS={user_rows}; "
                    "lower it or raise USER_ROWS."
                )
        return faults


def read_bundle(path: Path) -> Bundle:
    """Returns the bundle of a file. Sources are looked up in its folder first. Raises StartupError
    with every fault of the file."""
    try:
        if not path.is_file():
            raise StartupError(f"{path} is not a file; give the path of a bundle's YAML file.")
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise StartupError(f"{path} cannot be read ({error}); correct the path.") from None
    return parse_bundle(content).from_folder(path.parent.resolve())


def parse_bundle(content: bytes) -> Bundle:
    """Returns the bundle of this text. Raises StartupError with every fault."""
    if len(content) > MAX_FILE_BYTES:
        raise StartupError(f"The file has more than {MAX_FILE_BYTES} bytes; shorten it.")
    try:
        return parse_keys(content, Bundle, _name_faults)
    except KeysFaulty as error:
        raise StartupError(error.faults) from None


def _with_sources(member: BundleMember, change: Callable[[str], str]) -> BundleMember:
    draft, heads = member.draft, member.medusa_heads
    return member.model_copy(
        update={
            "source": change(member.source),
            "draft": draft and draft.model_copy(update={"source": change(draft.source)}),
            "medusa_heads": heads and change(heads),
        }
    )


def _name_faults(raw: Mapping[str, Any]) -> list[str]:
    """Returns the faults of duplicate names and unknown references. `raw` is not validated."""
    members = raw.get("experts")
    entries = members[:MAX_MEMBERS] if isinstance(members, list) else []
    names = [each.get("name") if isinstance(each, dict) else None for each in entries]
    faults = [
        f"experts[{index}].name: {shown(name)} is also the name of experts[{names.index(name)}]; "
        "give each its own name."
        for index, name in enumerate(names)
        if isinstance(name, str) and names.index(name) < index
    ]
    router = raw.get("router")
    meant = {
        "default": raw.get("default"),
        "router.fallback": router.get("fallback") if isinstance(router, dict) else None,
    }
    names_shown = ", ".join(shown(name)[1:-1] for name in names if isinstance(name, str))
    faults += [
        f"{key}: no expert {shown(name)}; known: {names_shown}."
        for key, name in meant.items()
        if isinstance(name, str) and name not in names
    ]
    return faults
