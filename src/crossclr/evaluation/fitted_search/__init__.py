"""What is fitted for search after training, and how validation chooses it."""
