"""Settings of the closed form: the features of each modality, the ridge, and the output channels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crossclr.models.closed_form.feature_map import FeatureSpec


@dataclass(frozen=True)
class ClosedFormSettings:
    """What a closed form is fitted with.

    Args:
        features: the features of each modality, or one for all.
        ridge: regularisation, as a multiple of a modality's mean variance per feature.
        width: maximum number of output channels.
        exponent: each output channel is multiplied by its correlation to this power, so that channels that hardly
            correlate count less in a cosine.

    Example:
        >>> settings = ClosedFormSettings({"video": FeatureSpec(0.5), "text": FeatureSpec(None, "none")})
        >>> settings.of("text").bandwidth is None  # linear
        True
    """

    features: Mapping[str, FeatureSpec] | FeatureSpec = field(default_factory=FeatureSpec)
    ridge: float = 0.3
    width: int = 256
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.ridge < 0 or self.width < 1 or self.exponent < 0:
            raise ValueError(
                f"ridge and exponent must be at least 0 and width at least 1, got ridge {self.ridge}, "
                f"exponent {self.exponent} and width {self.width}"
            )

    def of(self, modality: str) -> FeatureSpec:
        """The features of one modality."""
        if isinstance(self.features, FeatureSpec):
            return self.features
        if modality not in self.features:
            raise ValueError(f"no features are set for modality {modality}; there are {sorted(self.features)}")
        return self.features[modality]
