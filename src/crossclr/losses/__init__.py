"""CrossCLR and its rivals behind one interface."""
