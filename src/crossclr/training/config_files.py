"""Read configs from YAML, apply overrides, and report errors by key."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from crossclr.errors import ReadError
from crossclr.storage.yaml_files import parse_yaml, read_yaml_text
from crossclr.suggestions import suggest
from crossclr.training.run_config import RECIPE_LOSS, LossConfig, RunConfig, recipe_of

Config = TypeVar("Config", bound=BaseModel)


class ConfigError(ReadError):
    """A config that cannot be used; the message names every error with its key."""


def config_names(folder: str = "configs") -> list[str]:
    """Names of the configs shipped in a folder of the package.

    Example:
        >>> "emoji" in config_names(), config_names("captions/presets")
        (True, ['msvd', 'paper', 'small'])
    """
    files = (resources.files("crossclr") / folder).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def config_text(name_or_path: str | Path, folder: str = "configs") -> str:
    """The YAML text of a file (by path) or of a config shipped in that folder (by name)."""
    path = Path(name_or_path)
    if path.is_file():
        return read_yaml_text(path, ConfigError)
    name = str(name_or_path)
    if name in config_names(folder):
        return (resources.files("crossclr") / folder / f"{name}.yaml").read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise ConfigError(f"there is no config file {name}")
    raise ConfigError(f"there is no shipped config {name!r} and no such file; {suggest(name, config_names(folder))}")


def load_config(name_or_path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> RunConfig:
    """Read, override and check a config.

    Args:
        name_or_path: a shipped config's name or a YAML file.
        overrides: ``a.b=c`` strings, where c is YAML, or a mapping from ``a.b`` to a value.

    Example:
        >>> config = load_config("emoji", ["training.epochs=2", "loss.local.temperature=5e-2"])
        >>> config.training.epochs, config.loss.local.options["temperature"]
        (2, 0.05)
    """
    origin = str(name_or_path)
    config = check_values(read_values(config_text(name_or_path), origin, overrides), RunConfig, origin)
    changes_loss = any(str(change).startswith("loss") for change in overrides)
    if changes_loss or origin not in config_names():  # the shipped losses are known to be good
        check_losses(config, origin)
    return config


def read_values(text: str, origin: str, overrides: Sequence[str] | Mapping[str, Any] = ()) -> dict[str, Any]:
    """The plain values of a YAML text with its overrides; the first step for every kind of config."""
    values = parse_yaml(text, origin, ConfigError)
    if not isinstance(values, dict):
        raise ConfigError(f"{origin} must hold a mapping of fields, found {type(values).__name__}")
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_parse_override, overrides)
    for key, value in sorted(pairs, key=lambda pair: pair[0] != "recipe"):
        if key == "recipe" and value != recipe_of(values) and value in RECIPE_LOSS:
            values["loss"] = {"local": dict(RECIPE_LOSS[value])}  # another recipe, another loss
        put_value(values, key, value)
    return values


def check_config(values: Mapping[str, Any], origin: str = "config") -> RunConfig:
    """A RunConfig from plain values, or a ConfigError with all errors."""
    config = check_values(values, RunConfig, origin)
    check_losses(config, origin)
    return config


def check_losses(config: RunConfig, origin: str = "config") -> None:
    """Check the values of the losses' options by building the losses.

    Reading a config does not do this, because it imports PyTorch, which is slow.
    """
    from crossclr.training.objective import Objective

    for place, term in (("loss.local", config.loss.local), ("loss.global", config.loss.global_)):
        if term is not None:
            try:
                Objective(LossConfig(local=term))
            except ValueError as error:
                raise ConfigError(f"{origin}: {place}: {error}") from error


def check_values(values: Mapping[str, Any], kind: type[Config], origin: str = "config") -> Config:
    """A config of any kind from plain values, or a ConfigError with all errors."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{origin}: " + "; ".join(_faults(error, kind))) from error


def dump_config(config: BaseModel) -> str:
    """The whole config as YAML, defaults included; ``load_config`` reads it back."""
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)


def describe_config(config: BaseModel) -> str:
    """The whole config as YAML, with the description of every field above it."""
    return "\n".join(_described(config, "")) + "\n"


def _described(model: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if field.description:
            yield f"{indent}# {field.description}"
        key = field.alias or name
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:"
            yield from _described(value, indent + "  ")
        else:
            plain = model.model_dump(mode="json", include={name}, by_alias=True)
            yield from (indent + line for line in yaml.safe_dump(plain, sort_keys=False).splitlines())
    for name, value in (model.model_extra or {}).items():
        yield from (indent + line for line in yaml.safe_dump({name: value}, sort_keys=False).splitlines())


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override looks like a.b=value, got {text!r}")
    return key.strip(), parse_yaml(value, f"override {text!r}", ConfigError)


def put_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key of nested values; missing sections are created.

    Example:
        >>> values = {"a": {"b": 1}}
        >>> put_value(values, "a.c", 2)
        >>> values
        {'a': {'b': 1, 'c': 2}}
    """
    *path, last = key.split(".")
    here: Any = values
    for index, part in enumerate(path):
        if isinstance(here, list):
            here = here[_position(here, part, key)]
        else:
            if here.get(part) is None:
                here[part] = {}
            here = here[part]
        if not isinstance(here, dict | list):
            raise ConfigError(f"override {key}: {'.'.join(path[: index + 1])} is a single value, not a section")
    if isinstance(here, list):
        here[_position(here, last, key)] = value
    else:
        here[last] = value


def _position(items: list[Any], part: str, key: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(f"override {key}: {part!r} is not a position in a list of {len(items)}")
    return int(part)


def _faults(error: ValidationError, kind: type[BaseModel]) -> Iterator[str]:
    for fault in error.errors(include_url=False):
        place, known = _locate(fault["loc"], kind)
        if fault["type"] == "extra_forbidden":
            yield f"{place} is not a field; {suggest(str(fault['loc'][-1]), known)}"
        elif fault["type"] == "missing":
            yield f"{place} is missing"
        else:
            yield f"{place}: {fault['msg'].removeprefix('Value error, ')}"


def _locate(location: tuple[int | str, ...], kind: type[BaseModel]) -> tuple[str, list[str]]:
    """The key as a user writes it (without the tags of unions) and the known fields there."""
    models: list[type[BaseModel]] = [kind]
    parents, shown = models, []
    for index, part in enumerate(location):
        fields = [
            field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
        ]
        if fields or index == len(location) - 1 or isinstance(part, int) or not models:
            shown.append(str(part))
            parents = models
            models = [inner for field in fields for inner in _models_in(field.annotation)] if fields else models
    known = {field.alias or name for model in parents for name, field in model.model_fields.items()}
    return ".".join(shown) or "config", sorted(known)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType, list, tuple, dict):
        return [model for inner in get_args(annotation) for model in _models_in(inner)]
    return []
