"""How batches are drawn."""
