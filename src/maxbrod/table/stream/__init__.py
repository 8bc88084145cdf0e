"""An archive followed as a stream."""
