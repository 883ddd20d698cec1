"""What to do with a finished coupling: products, maps, samples, costs, pictures."""
