"""From a config to a run folder."""

from crossclr.training.config.config_files import ConfigError, config_names, describe_config, dump_config, load_config
from crossclr.training.config.run_config import (
    FitConfig,
    LossConfig,
    OptimiserConfig,
    RunConfig,
    ScheduleConfig,
    TermConfig,
)
from crossclr.training.fit_run import fit_run
from crossclr.training.joint_training import JointTraining, selection_score
from crossclr.training.loop import Interrupted, Recorder, Reporter, fit
from crossclr.training.memory_recorder import MemoryRecorder
from crossclr.training.objective import Objective
from crossclr.training.optimisation.radam import RAdam
from crossclr.training.optimisation.schedule import Cosine, Plateau, Schedule
from crossclr.training.processes import make_fabric
from crossclr.training.random_state import seed_everything
from crossclr.training.run_folder.checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from crossclr.training.run_folder.folder import RunFolder
from crossclr.training.run_folder.recorder import RunRecorder
from crossclr.training.run_folder.run import Run
from crossclr.training.trainable import Trainable, TrainingError, Validation

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Cosine",
    "FitConfig",
    "Interrupted",
    "JointTraining",
    "LossConfig",
    "MemoryRecorder",
    "Objective",
    "OptimiserConfig",
    "Plateau",
    "RAdam",
    "Recorder",
    "Reporter",
    "Run",
    "RunConfig",
    "RunFolder",
    "RunRecorder",
    "Schedule",
    "ScheduleConfig",
    "TermConfig",
    "Trainable",
    "TrainingError",
    "Validation",
    "config_names",
    "describe_config",
    "dump_config",
    "fit",
    "fit_run",
    "load_checkpoint",
    "load_config",
    "load_weights",
    "make_fabric",
    "save_checkpoint",
    "seed_everything",
    "selection_score",
]
