"""`beast health`: a whole run at a glance, wherever it runs.

run         services of a run folder, as `beast train` starts them
compose     containers of a compose project
kubernetes  pods of a namespace
containers  what the last two have in common
"""
