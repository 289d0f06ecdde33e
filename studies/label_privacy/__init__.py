"""Mechanisms that protect labels alone."""
