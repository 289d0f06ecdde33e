"""*Tight Auditing*: audits that watch every step."""
