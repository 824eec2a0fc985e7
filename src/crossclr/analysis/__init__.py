"""The paper's tables and figures on any data: experiments, figures, and a report."""

from crossclr.analysis.conduct import conduct, open_context
from crossclr.analysis.context import Context
from crossclr.analysis.experiments import EXPERIMENTS
from crossclr.analysis.methods import METHODS, Method, configure
from crossclr.analysis.study import StudyConfig, load_study, study_names

__all__ = [
    "EXPERIMENTS",
    "METHODS",
    "Context",
    "Method",
    "StudyConfig",
    "conduct",
    "configure",
    "load_study",
    "open_context",
    "study_names",
]
