"""How much noise a risk needs."""
