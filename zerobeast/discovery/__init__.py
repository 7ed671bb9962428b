"""`beast health`: a whole run at a glance, wherever it runs.

run         services of a run folder, as `beast train` starts them
containers  those of a compose project, or of pods in a namespace of Kubernetes
"""
