"""Images, sound and video: decoding, and preparing images for a network."""
