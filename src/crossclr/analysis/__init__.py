"""The paper's tables and figures on any data: experiments, figures, and a report."""

from crossclr.analysis.experiments import EXPERIMENTS
from crossclr.analysis.studies.compared_losses import METHODS, Method, configure
from crossclr.analysis.studies.open_study import Study, open_study
from crossclr.analysis.studies.run_experiments import run_experiments
from crossclr.analysis.studies.study import StudyConfig, load_study, study_names

__all__ = [
    "EXPERIMENTS",
    "METHODS",
    "Method",
    "Study",
    "StudyConfig",
    "configure",
    "load_study",
    "open_study",
    "run_experiments",
    "study_names",
]
