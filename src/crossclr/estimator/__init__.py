"""A joint embedding with scikit-learn's interface."""

from crossclr.estimator.joint_embedding import JointEmbedding

__all__ = ["JointEmbedding"]
