"""The file of a mapped model: its trained numbers, and the recipe that makes weights of them.

One safetensors file holds the latent (or what the strategy packs it into), the tracked buffers
and what a strategy keeps in persistent buffers (masks) as tensors, and as metadata, in JSON, the
recipe: components with their settings and suppliers, seeds, and fingerprints of the target's layout, row scales and
base. Neither the base nor any generated weight is in it, so it takes ``4 * latent_dim``
bytes, those buffers, and about a kilobyte.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors
import safetensors.torch
from torch import Tensor, nn

import mapping_core
from mapping_core import random
from mapping_core.components import Component, GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.config import unstructure
from mapping_core.errors import BudgetError, FileFormatError, TargetError, UnknownComponentError
from mapping_core.nesting import nested, renamed, types_of
from mapping_core.recipe import FORMAT, KEY, check_recipe, newer_error, recipe_of, supplier_at
from mapping_core.registry import Catalog, Registry
from mapping_core.target.layout import Layout
from mapping_core.target.roles import RoleRules
from mapping_core.target.wrappers import plain_target

if TYPE_CHECKING:
    from mapping_core.model import MappingModel
    from mapping_core.target.roles import Patterns

M = TypeVar("M", bound="MappingModel")

_KINDS: dict[str, type[Component]] = {
    "strategy": GeneratorConfig,
    "mapper": MapperConfig,
    "modulation": ModulationConfig,
}


_LATENT = "latent"
_PACKED = "packed."  # before the names of what a strategy packs the latents into


def write(path: str | Path, model: MappingModel, *, packed: bool = True) -> None:
    """Write a model's file; a file of that name is replaced only by a complete one.

    Without `packed` it holds the latent as it trains, of which the strategy may use less.
    """
    write_tensors(path, *_content(model, packed=packed))


def size_of(model: MappingModel) -> int:
    """The bytes of the file that `write` would write."""
    # Hashing a large base takes seconds, and gives as many characters whatever it is.
    return len(_serialized(*_content(model, packed=True, base_sha256="0" * 64)))


def _content(
    model: MappingModel, *, packed: bool, base_sha256: str | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors = model.state_dict()
    if packed and (made := model.generator.pack(model.latents)) is not None:
        del tensors[_LATENT]
        tensors |= {_PACKED + name: tensor for name, tensor in made.items()}
    return tensors, {KEY: json.dumps(recipe_for(model, base_sha256), separators=(",", ":"))}


def _take(path: str | Path, model: MappingModel, tensors: Mapping[str, Tensor]) -> None:
    """Take over a file's tensors, or leave the model as it is."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    packed = {name.removeprefix(_PACKED): tensor for name, tensor in tensors.items() if name.startswith(_PACKED)}
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith(_PACKED)}
    try:
        if not packed:
            model.load_state_dict(plain)
            return
        model.load_state_dict({**plain, _LATENT: before[_LATENT]})
        model.take_latents(model.generator.unpack(packed))
    except (RuntimeError, ValueError) as error:
        model.load_state_dict(before)
        raise FileFormatError(f"{path}: is damaged, its tensors are not those of its recipe: {error}") from error


def recipe_for(model: MappingModel, base_sha256: str | None = None) -> dict[str, Any]:
    """All that makes weights of what trained, ready for JSON: models with equal recipes and latents are equal.

    `base_sha256` stands for the base's hash, to spare making it.
    """
    return {
        "format": FORMAT,
        "version": mapping_core.__version__,
        "random": random.VERSION,
        "latent_dim": model.latent_dim,
        "seed": model.seed,
        "base": model.base,
        "buffers": model.buffer_policy,
        "components": {
            role: _recorded(role, component, model.suppliers) for role, component in model.components().items()
        },
        "weights": sum(spec.numel for spec in model.layout.mapped),
        "layout": model.layout.fingerprint(),
        "scales": model.layout.scale_fingerprint(),
        "roles": model.roles,
        "base_sha256": model.base_fingerprint() if base_sha256 is None else base_sha256,
    }


def _recorded(role: str, component: Component, suppliers: Mapping[str, str | None]) -> dict[str, Any]:
    record = {"settings": unstructure(component), "supplier": suppliers[role]}
    inside = {
        path: {"kind": each.kind, "supplier": suppliers[f"{role}.{path}"]} for path, each in nested(component).items()
    }
    return {**record, "nested": inside} if inside else record


def differences(path: str | Path, model: MappingModel) -> list[str]:
    """The entries of a file's recipe in which `model` is built otherwise; none if the file is of such a model."""
    recipe, _ = read(path)
    own = json.loads(json.dumps(recipe_for(model)))
    return [key for key in own if key not in ("format", "version", "components") and own[key] != recipe.get(key)] + [
        role
        for role in sorted({*own["components"], *recipe["components"]})
        if _settings(own, role) != _settings(recipe, role)
    ]


def restore(path: str | Path, model: MappingModel) -> None:
    """Take over a file's trained numbers into a model that was built as the file's; nothing changes if it was not."""
    if differing := differences(path, model):
        raise FileFormatError(
            f"{path}: was made by a model that differs from this one in {', '.join(differing)}: build it as that was"
        )
    _take(path, model, read(path)[1])


def _settings(recipe: Mapping[str, Any], role: str) -> Any:
    return recipe["components"].get(role, {}).get("settings")


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file whole or not at all; tensors that share memory are written each."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent} to write it to")
    content = _serialized(tensors, metadata)
    # Not by `tempfile` or `save_file`, whose files nobody else may read, even after the renaming.
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _serialized(tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    addresses: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    content: bytes = safetensors.torch.save(own, metadata=metadata)
    return content


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a file's recipe and tensors; raises `FileFormatError` for any other kind of file."""
    if not Path(path).is_file():
        raise FileFormatError(f"{path}: there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (safetensors.SafetensorError, OSError) as error:
        raise FileFormatError(f"{path}: is damaged, or not a safetensors file: {error}") from error
    recipe = recipe_of(path, metadata)
    if recipe["format"] > FORMAT or recipe["random"] > random.VERSION:
        raise newer_error(path, recipe)
    check_recipe(path, recipe)
    return recipe, tensors


def load(
    cls: type[M],
    path: str | Path,
    target: nn.Module,
    *,
    share_base: bool,
    lazy: bool | Patterns,
    registry: Registry | None,
) -> M:
    """Make the model of a file around `target`; everything is checked before anything is made of it."""
    recipe, tensors = read(path)
    target = plain_target(target)
    registry = registry if registry is not None else Registry.discover()
    settings = {
        role: _of_its_suppliers(path, role, component, registry) for role, component in recipe["components"].items()
    }
    try:
        layout = Layout.of(target, RoleRules.of(**recipe["roles"]))
    except TargetError as error:
        raise FileFormatError(f"{path}: does not fit this {type(target).__name__}: {error}") from error
    if layout.fingerprint() != recipe["layout"]:
        raise FileFormatError(
            f"{path}: was made for another target, with {recipe['weights']:,} mapped weights; this "
            f"{type(target).__name__} has {sum(spec.numel for spec in layout.mapped):,}, or other names or shapes"
        )
    scales = layout.scale_fingerprint()
    if recipe.get("scales", scales) != scales:
        raise FileFormatError(
            f"{path}: was made with other row scales than this {type(target).__name__} has here: declare the "
            "config.initializer_range it was made with, or install the version it was made with, mapping-core "
            f"{recipe['version']} (this is {mapping_core.__version__})"
        )
    try:
        model = cls(
            target,
            recipe["latent_dim"],
            **settings,
            **recipe["roles"],
            base=recipe["base"],
            share_base=share_base,
            buffers=recipe["buffers"],
            lazy=lazy,
            seed=recipe["seed"],
            registry=registry,
        )
    except UnknownComponentError as error:
        supplier = supplier_at(recipe, error.path)
        message = f"{path}: {error}; the file was written with {supplier}"
        if supplier is not None and "pip install" not in message:
            message += f": pip install {supplier.partition(' ')[0]}"
        raise UnknownComponentError(message) from error
    except BudgetError as error:
        raise FileFormatError(f"{path}: is damaged, its latent does not fit its layout: {error}") from error
    if model.base_fingerprint() != recipe["base_sha256"]:
        raise FileFormatError(
            f"{path}: was made for a {type(target).__name__} with other base weights: load or seed the "
            "target exactly as it was when the model was built"
        )
    _take(path, model, tensors)
    return model


def _of_its_suppliers(path: str | Path, role: str, component: Mapping[str, Any], registry: Registry) -> dict[str, Any]:
    """A component's settings, naming the distributions that the file was written with.

    Other distributions may supply the same name, and what theirs generates is other weights.
    """
    written: dict[str, Any] = {"": {"kind": _KINDS[role].kind, "supplier": component["supplier"]}}
    written.update(component.get("nested", {}))
    names = {}
    for at, name in types_of(component["settings"]).items():
        if at in written:
            catalog = registry.catalog(written[at]["kind"])
            names[at] = _of_its_supplier(path, f"{role}.{at}" if at else role, name, written[at]["supplier"], catalog)
    settings: dict[str, Any] = renamed(component["settings"], names)
    return settings


def _of_its_supplier(path: str | Path, role: str, name: str, supplier: str | None, catalog: Catalog[Component]) -> str:
    distribution, _, version = (supplier or "").partition(" ")
    entries = [entry for entry in catalog if entry.name == name]
    if any(entry.distribution == distribution for entry in entries):
        return f"{distribution}:{name}"
    # Objects that were registered by hand have no version; who passes them says what the name means.
    if version and entries and all(entry.version for entry in entries):
        raise UnknownComponentError(
            f"{path}: was written with {role} {name!r} of {supplier}, and here it is supplied by "
            f"{', '.join(entry.distribution for entry in entries)}, which may mean other weights: "
            f"pip install {distribution}"
        )
    return name
