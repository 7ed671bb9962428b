"""Many runs on this machine: which ones, on which cores, and what became of each."""
