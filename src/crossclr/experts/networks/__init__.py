"""The experts themselves: one file for each network."""
