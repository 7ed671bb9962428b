"""One typed tree of settings, and how it is filled: default < preset < YAML file < environment < flag."""
