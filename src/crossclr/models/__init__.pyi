from crossclr.models.coot import import_coot as import_coot
from crossclr.models.embeddings import Embeddings as Embeddings
from crossclr.models.embeddings import Vectors as Vectors
from crossclr.models.embeddings import embed_data as embed_data
from crossclr.models.joint_model import JointModel as JointModel
from crossclr.models.joint_model import build_model as build_model
from crossclr.models.model_config import ModelConfig as ModelConfig
from crossclr.models.space import SearchSpace as SearchSpace
