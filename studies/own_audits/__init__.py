"""The audits of trainings and models as users write them."""
