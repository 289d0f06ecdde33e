"""How often bounds are wrong, and how loose they are, where ε is known."""
