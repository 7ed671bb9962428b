"""gymnasium vector environments whose environments live in env-servers."""
