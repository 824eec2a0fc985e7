"""What people search with: files of their own, and several things at once."""
