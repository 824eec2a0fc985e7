"""The `crossclr` command."""
