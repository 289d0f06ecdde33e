"""Trainings with a mistake, and the audits that find them."""
