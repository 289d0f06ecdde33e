"""*Final models*: what an adversary learns who only asks a box about them."""
