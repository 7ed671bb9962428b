"""Two-timescale actor-critic, an example of an algorithm with extras and two optimisers of its own."""
