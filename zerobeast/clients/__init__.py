"""Programs outside a run that step its environments, act with its policy, or take the place of a service."""
