"""A joint embedding with scikit-learn's interface."""

from crossclr.estimator.joint_embedding import JointEmbedding
from crossclr.estimator.parameters import NamedArrays

__all__ = ["JointEmbedding", "NamedArrays"]
