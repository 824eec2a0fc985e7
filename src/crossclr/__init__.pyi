from crossclr.api import embed as embed
from crossclr.api import evaluate as evaluate
from crossclr.api import resume as resume
from crossclr.api import train as train
from crossclr.api import train_seeds as train_seeds
from crossclr.estimator import JointEmbedding as JointEmbedding
from crossclr.estimator import NamedArrays as NamedArrays
from crossclr.training import Run as Run
from crossclr.training import RunConfig as RunConfig
from crossclr.training import load_config as load_config

__version__: str
