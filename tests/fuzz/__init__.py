"""A fuzz of the public face: arguments for every public function, and what may come back."""
