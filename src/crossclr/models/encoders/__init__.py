"""Local and global encoders."""
