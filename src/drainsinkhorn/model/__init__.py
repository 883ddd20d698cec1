"""What is solved and what comes back: problems, costs, results. Arrays are a type variable here."""
