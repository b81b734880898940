"""The ladder of DDP classes."""
