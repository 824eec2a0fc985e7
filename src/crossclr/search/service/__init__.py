"""Search over HTTP, and the page that uses it."""
