"""The values of a model's `config.json`, with the defaults of its type, under the names that types share.

A key that the type does not know, and whose name says that it changes the architecture, is refused: a count without it
would be wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.catalog.model_configs import config_type
from flatout.errors import InputError

MOST = 1 << 40  # far beyond any number in a model's config; products of such numbers are still floats
MOST_LAYERS = 1 << 16
# Keys that add experts, latent vectors, recurrences, windows or layers of another kind.
_STRUCTURAL = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "moe_intermediate_size"),
    *("num_shared_experts", "num_shared_expert", "n_shared_experts", "moe_num_shared_experts"),
    *("shared_intermediate_size", "shared_expert_intermediate_size", "shared_expert_num"),
    *("kv_lora_rank", "q_lora_rank", "layer_types", "layers_block_type", "hybrid_override_pattern", "block_types"),
    *("mamba_d_state", "ssm_state_size", "mamba_num_heads", "linear_num_value_heads", "attn_layer_period"),
    *("attn_layer_indices", "attn_type_list", "full_attn_idxs", "cross_attention_layers", "sliding_window"),
    *("attention_chunk_size", "attention_types", "block_configs", "linear_attn_config"),
)
# Values that switch a feature off.
_OFF: tuple[Any, ...] = (None, False, 0, "", [], {})


class ModelConfig:
    """A config's values. A missing key has its type's default, as in transformers."""

    def __init__(self, path: Path, values: dict[str, Any], model_type: str) -> None:
        self.path, self.values, self.model_type = path, values, model_type
        self._type = config_type(model_type)
        self._asked: set[str] = set()

    def value(self, *names: str) -> Any:
        """Return the value under the first of the names that the config has; otherwise the type's default, or None."""
        spelled = [spelling for name in names for spelling in self._spellings(name)]
        self._asked.update(spelled)
        for name in spelled:
            if self.values.get(name) is not None:
                return self.values[name]
        if any(name in self.values for name in spelled):
            return None  # an explicit null
        return next((self._type.defaults[name] for name in spelled if name in self._type.defaults), None)

    def whole(self, *names: str, default: int | None = None) -> int:
        """Return a number of elements, layers or the like. Raise InputError for a number that no model has."""
        return self._number(names, default, least=0)

    def size(self, *names: str) -> int:
        """Return a number of at least 1."""
        return self._number(names, None, least=1)

    def _number(self, names: tuple[str, ...], default: int | None, *, least: int) -> int:
        value = self.value(*names)
        if value is None:
            if default is None:
                raise KeyError(names[0])
            return default
        name = self._given_name(names)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value > MOST:
            raise InputError(f"`{name}` in `{self.path}` must be at most {MOST:,}, but is {value!r:.24}")
        if not is_number or not value >= least or int(value) != value:
            raise InputError(
                f"`{name}` in `{self.path}` must be a whole number of at least {least}, but is {value!r:.40}"
            )
        return int(value)

    def _given_name(self, names: tuple[str, ...]) -> str:
        """Return the name under which the config has the value; otherwise the first."""
        spelled = [spelling for name in names for spelling in self._spellings(name)]
        return next((name for name in spelled if self.values.get(name) is not None), names[0])

    def is_on(self, *names: str) -> bool:
        """Whether the config, or its type's default, switches a feature on."""
        return bool(self.value(*names))

    def texts(self, *names: str) -> list[str] | None:
        """Return a list of words, such as the types of the layers; None if it is not given."""
        value = self.value(*names)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise InputError(f"`{names[0]}` in `{self.path}` must be a list of words, but is {value!r:.40}")
        return list(value)

    def part(self, name: str, default_type: str) -> ModelConfig:
        """Return a config inside this one, such as `text_config`."""
        values = self.values.get(name)
        values = values if isinstance(values, dict) else {}
        return ModelConfig(self.path, values, str(values.get("model_type") or default_type))

    def knows(self, name: str) -> bool:
        """Whether configs of this type have a key."""
        return name in self._type.defaults or name in self._type.optional or name in self._type.names

    def refuse_unknown_structure(self) -> None:
        """Raise InputError for a key that changes the architecture, and that neither the type nor its reader has."""
        known = {*self._type.defaults, *self._type.optional, *self._type.names, *self._asked}
        for key, value in self.values.items():
            if key in _STRUCTURAL and key not in known and value not in _OFF:
                raise InputError(
                    f"`{key}` in `{self.path}` is unknown for a model of type `{self.model_type}`, and may change its "
                    "size",
                    hint="remove the key if it has no effect, or give the widths: --model layers=N,hidden=N,heads=N",
                )

    def shares_keys_of(self, other: ModelConfig) -> None:
        """Take the keys that another type's reader asked for as known: its values are in the same config."""
        self._asked |= {*other._asked, *other._type.defaults, *other._type.optional}

    def _spellings(self, name: str) -> list[str]:
        spelling = self._type.names.get(name)
        return [name] if spelling is None else [name, spelling]
