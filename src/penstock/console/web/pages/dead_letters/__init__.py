"""The pages of dead letters: all stores, one store, one letter, two compared."""
