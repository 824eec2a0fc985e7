"""The search space: closed form and trained encoders side by side, one vector for each item and each query."""

from crossclr.models.search_space.choice import choose_space
from crossclr.models.search_space.hub_correction import HubCorrection
from crossclr.models.search_space.space import Part, SearchSpace

__all__ = ["HubCorrection", "Part", "SearchSpace", "choose_space"]
