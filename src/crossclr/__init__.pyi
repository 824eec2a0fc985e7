from crossclr import captions as captions
from crossclr import data as data
from crossclr import errors as errors
from crossclr import estimator as estimator
from crossclr import evaluation as evaluation
from crossclr import extract as extract
from crossclr import losses as losses
from crossclr import models as models
from crossclr import search as search
from crossclr import studies as studies
from crossclr import training as training
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
