"""An algorithm, a network and environments of one's own, in a package beside ZeroBeast."""
