"""What an ε promises, and what it costs."""
