"""Trainings and models as users write them."""
