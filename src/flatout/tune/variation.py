"""What a trial does otherwise than the job, to show how far losses differ without any change: samples, or rounding."""

from __future__ import annotations

import msgspec

from flatout.inside.protocol import Variable

_OTHER_SAMPLES = " other samples"  # in the key of such a trial
_OTHER_ROUNDING = " other rounding"
_OTHER_SEED = "30986753"  # of the samples in the one trial that draws others


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial does otherwise, to show how far that changes the losses."""

    other_samples: bool = False  # its loader draws other samples
    other_rounding: bool = False  # its weights are disturbed by as much as rounding does

    @property
    def key(self) -> str:
        """Return what is added to the key of the trial."""
        samples = _OTHER_SAMPLES if self.other_samples else ""
        return samples + (_OTHER_ROUNDING if self.other_rounding else "")

    @property
    def words(self) -> str:
        """Return what the live log says before the trial's time."""
        if self.other_samples:
            return "with other samples: "
        return "with other rounding: " if self.other_rounding else ""

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that make the job do so."""
        variables: dict[str, str] = {}
        if self.other_samples:
            variables[Variable.OTHER_SAMPLES] = _OTHER_SEED
        if self.other_rounding:
            variables[Variable.OTHER_ROUNDING] = "1"
        return variables
