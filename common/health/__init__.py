"""What a service says about itself, and how it is read.

progress  whether a service gets on with its work
metrics   the same numbers for Prometheus
pages     fetching a page
figures   numbers as people read them
verdict   which service limits the throughput, and what to scale
table     all services as one table, with the verdict
command   `python -m zerobeast.services.<role> health`
"""
