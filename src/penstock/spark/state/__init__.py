"""State by key: a function is called with the rows of a key and the state that it kept before."""
