"""What decides a run: its fields, the files it is read from, and named changes to it."""
