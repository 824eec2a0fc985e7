"""Studies: many trainings, planned, run once and stored."""
