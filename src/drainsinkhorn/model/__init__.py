"""Problems, costs, results and errors. The type of arrays is a type variable, so no array library is imported."""
