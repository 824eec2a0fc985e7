from crossclr.studies.experiments import run_experiments as run_experiments
from crossclr.studies.study import Study as Study
from crossclr.studies.study import open_study as open_study
from crossclr.studies.study_config import StudyConfig as StudyConfig
from crossclr.studies.study_config import load_study as load_study
