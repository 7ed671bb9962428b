"""What a run consists of: its settings, its folder, and a record for each of its processes. Nothing here starts one of
them.
"""
