"""The built-in emoji set."""
