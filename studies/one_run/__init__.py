"""Many pairs in one training."""
