"""Configs that are named by their text, as tests and their parameters write them."""

from __future__ import annotations

from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.families.base import Family, require_valid
from tirgemm.gemm import Gemm


def named_config(family: Family, gemm: Gemm, device: Device, text: str) -> Config:
    """The config of ``knob=choice knob=choice``; a knob that is not named takes its simplest choice.

    Raises InvalidConfig for a knob or a choice that the space lacks, and where a rule rejects the config.
    """
    space = family.space(gemm, device)
    choices = {knob.name: {str(choice): choice for choice in knob.choices} for knob in space.knobs}
    named: dict[str, Value] = {}
    for word in text.split():
        name, _, choice = word.partition("=")
        if choice not in choices.get(name, {}):
            raise InvalidConfig(
                f"{family.name} for {gemm} has no {word}; choices are {', '.join(choices.get(name, {}))}"
            )
        named[name] = choices[name][choice]
    config = space.at(0).with_(**named)
    require_valid(family, gemm, config, device)
    return config
