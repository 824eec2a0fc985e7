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
from crossclr.training.loop import Interrupted, Training, TrainingError, fit, seed_everything, selection_score
from crossclr.training.objective import Objective
from crossclr.training.optimisation.radam import RAdam
from crossclr.training.optimisation.schedule import Cosine, Plateau, Schedule
from crossclr.training.processes import make_fabric
from crossclr.training.run_folder.checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from crossclr.training.run_folder.run import Run, RunRecorder

__all__ = [
    "CheckpointError",
    "ConfigError",
    "Cosine",
    "FitConfig",
    "Interrupted",
    "LossConfig",
    "Objective",
    "OptimiserConfig",
    "Plateau",
    "RAdam",
    "Run",
    "RunConfig",
    "RunRecorder",
    "Schedule",
    "ScheduleConfig",
    "TermConfig",
    "Training",
    "TrainingError",
    "config_names",
    "describe_config",
    "dump_config",
    "fit",
    "load_checkpoint",
    "load_config",
    "load_weights",
    "make_fabric",
    "save_checkpoint",
    "seed_everything",
    "selection_score",
]
