"""COOT checkpoints: import into our model."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from crossclr.models.joint_model import JointModel
from crossclr.models.model_config import EncoderConfig, GlobalEncoderConfig, ModelConfig, TransformerEncoderConfig

NETWORKS = ("net_video_local", "net_video_global", "net_text_local", "net_text_global")
MODALITIES = ("video", "text")
_OLD_NAMES = (
    ("input_norm.", "norm_input."),
    ("input_fc.", "input_fc.mlp."),
    ("pooler.genpool", "pooler.pools.0.genpool"),
)

_ATTENTION = "self_attention_layer.sublayer."
_FEED_FORWARD = "pointwise_feedforward_layer.sublayer.feed_forward."
_LAYER = {
    "attention.output": _ATTENTION + "final_projection",
    "expand": _FEED_FORWARD + "0",
    "contract": _FEED_FORWARD + "3",
}
_LAYER_NORMS = {
    "attention_norm": "self_attention_layer.layer_normalization",
    "output_norm": "pointwise_feedforward_layer.layer_normalization",
}
_POOLER = {"expand_weight": "w1", "expand_bias": "b1", "score_weight": "w2", "score_bias": "b2"}
# Not parameters: the position table, which is recomputed, and an unused frozen scalar.
_IGNORED = ("embedding.pe", "pooler.pools.0.genpool_one")


def _normalised(state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Tensor]]:
    """The four state dicts by name, as tensors, with the keys of the newer layout."""
    old = not isinstance(state, Mapping)
    if old and len(state) != len(NETWORKS):
        raise ValueError(f"an old COOT checkpoint is a list of {len(NETWORKS)} state dicts, this one has {len(state)}")
    named = dict(zip(NETWORKS, state, strict=True)) if not isinstance(state, Mapping) else dict(state)
    missing = [name for name in NETWORKS if name not in named]
    unknown = [str(name) for name in named if name not in NETWORKS]
    if missing or unknown:
        raise ValueError(
            f"a COOT checkpoint maps {', '.join(NETWORKS)} to state dicts; missing: {missing}, unknown: {unknown}"
        )
    result = {}
    for name, network in named.items():
        tensors = {}
        if not isinstance(network, Mapping):
            raise ValueError(f"{name} must be a state dict, found a {type(network).__name__}")
        for key, value in network.items():
            key = key.removeprefix("module.")
            if old:
                for before, after in _OLD_NAMES:
                    key = after + key.removeprefix(before) if key.startswith(before) else key
            tensors[key] = torch.as_tensor(value).detach().to("cpu")
        result[name] = tensors
    return result


def _count_layers(network: Mapping[str, Tensor], stack: str) -> int:
    prefix = f"{stack}.encoder_layers."
    return len({key[len(prefix) :].split(".")[0] for key in network if key.startswith(prefix)})


def _shape(state: Mapping[str, Mapping[str, Tensor]], name: str, key: str) -> torch.Size:
    if key not in state[name]:
        raise ValueError(f"{name} has no {key!r}, so this is not a COOT network")
    return state[name][key].shape


def _default_heads(dim: int) -> int:
    return 8 if dim % 8 == 0 and dim >= 64 else 2


def _config(
    state: Mapping[str, Mapping[str, Tensor]],
    heads: int | None,
    global_heads: int | None,
    pool: Literal["coot_sum", "mean"],
) -> tuple[ModelConfig, dict[str, int]]:
    """The config that matches the shapes of a state."""
    expand = f"tf.encoder_layers.0.{_FEED_FORWARD}0.weight"
    encoders, dims, widths = [], [], []
    for name in ("net_video_local", "net_text_local"):
        dim, input_dim = _shape(state, name, "input_fc.mlp.0.weight")
        pooler_heads, _, pooler_hidden = _shape(state, name, "pooler.pools.0.genpool_w1_head")
        dims.append(input_dim)
        widths.append(dim)
        encoders.append(
            TransformerEncoderConfig(
                layers=_count_layers(state[name], "tf"),
                heads=heads or _default_heads(dim),
                feed_forward=_shape(state, name, expand)[0],
                pooler_heads=pooler_heads,
                pooler_hidden=pooler_hidden,
            )
        )
    widths += [_shape(state, name, "norm_input.gain")[0] for name in ("net_video_global", "net_text_global")]
    if len(set(widths)) != 1:
        raise ValueError(f"the four networks must share one width, these have {widths}")
    global_encoder = GlobalEncoderConfig(
        layers=_count_layers(state["net_video_global"], "tf"),
        heads=global_heads or heads or _default_heads(widths[0]),
        feed_forward=_shape(state, "net_video_global", expand)[0],
        pool=pool,
    )
    given: dict[str, EncoderConfig] = dict(zip(MODALITIES, encoders, strict=True))
    config = ModelConfig(dim=widths[0], encoders=given, global_encoder=global_encoder)
    return config, dict(zip(MODALITIES, dims, strict=True))


def _layer_pairs(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    """For each of our keys in a transformer layer, the COOT keys that it is joined from."""
    pairs: dict[str, tuple[str, ...]] = {}
    for kind in ("weight", "bias"):
        parts = tuple(f"{theirs}.{_ATTENTION}{part}_projection.{kind}" for part in ("query", "key", "value"))
        pairs[f"{ours}.attention.projection.{kind}"] = parts
        pairs |= {f"{ours}.{mine}.{kind}": (f"{theirs}.{other}.{kind}",) for mine, other in _LAYER.items()}
    for kind in ("gain", "bias"):
        pairs |= {f"{ours}.{mine}.{kind}": (f"{theirs}.{other}.{kind}",) for mine, other in _LAYER_NORMS.items()}
    return pairs


def _pairs(name: str, layers: int) -> dict[str, tuple[str, ...]]:
    """For each of our keys in a network, the COOT keys that it is joined from (along the first axis)."""
    pairs: dict[str, tuple[str, ...]] = {f"input_norm.{k}": (f"norm_input.{k}",) for k in ("gain", "bias")}
    for index in range(layers):
        pairs |= _layer_pairs(f"layers.{index}", f"tf.encoder_layers.{index}")
    if name.endswith("global"):
        return pairs | _layer_pairs("context_layer", "tf_context.encoder_layers.0")
    pairs |= {f"projection.{k}": (f"input_fc.mlp.0.{k}",) for k in ("weight", "bias")}
    return pairs | {f"pooler.{mine}": (f"pooler.pools.0.genpool_{other}_head",) for mine, other in _POOLER.items()}


def import_coot(
    state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    heads: int | None = None,
    global_pool: Literal["coot_sum", "mean"] = "coot_sum",
    global_heads: int | None = None,
) -> JointModel:
    """A model with the weights of a COOT checkpoint, in evaluation mode.

    Args:
        state: the four COOT network names with their state dicts (numpy arrays or tensors), or the older layout,
            a list of four. The prefix ``module.`` of a key is dropped.
        heads: attention heads, which a state does not contain; by default 8, or 2 for a width below 64 or not
            divisible by 8.
        global_pool: ``coot_sum`` gives COOT's numbers, which depend on the other videos of a batch; ``mean`` gives the
            embedding of each video on its own.
        global_heads: heads of the two global networks; by default the same as ``heads``.

    Raises:
        ValueError: a network or a key is missing, unknown or of the wrong shape; the message names it.
    """
    networks = _normalised(state)
    config, dims = _config(networks, heads, global_heads, global_pool)
    model = JointModel(config, dims, two_level=True)
    paths = [f"encoders.{name}.{part}" for name in model.modalities for part in ("local", "global_")]
    for network, path in zip(NETWORKS, paths, strict=True):
        _load(model.get_submodule(path), network, networks[network])
    return model.eval()


def _load(module: nn.Module, name: str, network: Mapping[str, Tensor]) -> None:
    pairs = _pairs(name, _count_layers(network, "tf"))
    expected = {key for keys in pairs.values() for key in keys}
    missing = sorted(expected - set(network))
    unknown = sorted(set(network) - expected - set(_IGNORED))
    if missing or unknown:
        raise ValueError(f"{name} does not have the keys of a COOT network; missing: {missing}, unknown: {unknown}")
    ours = module.state_dict()
    for key, theirs in pairs.items():
        value = torch.cat([network[other] for other in theirs])
        if key in ("pooler.expand_weight", "pooler.score_weight"):
            value = value.transpose(1, 2)  # COOT multiplies from the right
        if value.shape != ours[key].shape:
            raise ValueError(
                f"{name}: {theirs} gives shape {tuple(value.shape)} where {tuple(ours[key].shape)} is expected"
            )
        ours[key] = value.to(torch.float32).contiguous()
    module.load_state_dict(ours)


def read_coot(path: str | Path) -> Any:
    """The content of a COOT model file, for `import_coot`; only tensors are read, never code."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint file {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} is not a file of tensors as COOT saves its models (model_<epoch>.pth): {reason}"
        ) from error
    if not isinstance(state, Mapping | list):
        raise ValueError(f"{path} holds a {type(state).__name__}, not the four networks of a COOT model")
    return state
