"""What audits cost."""
