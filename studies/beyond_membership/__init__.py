"""*Beyond Membership*: tasks, figures and pictures of its pages."""
