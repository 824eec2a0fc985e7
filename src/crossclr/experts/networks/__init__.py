"""The experts themselves, one network in each file."""
