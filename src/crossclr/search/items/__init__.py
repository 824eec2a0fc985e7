"""What an index stores about each item, and the media files that show it."""
