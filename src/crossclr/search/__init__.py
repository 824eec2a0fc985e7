"""Type a sentence, see the clip: index, query encoders, service and page, export."""
