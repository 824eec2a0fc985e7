"""`crossclr extract`: from recordings and sentences to a feature set."""
