"""`beast health`: a whole run at a glance, wherever it runs.

run      services of a run folder, as `beast train` starts them
compose  containers of a compose project
command  flags, and which of these to ask
"""
