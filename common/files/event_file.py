"""TensorBoard's event files, written record by record in the caller's own thread.

TensorBoard's EventFileWriter, and torch's SummaryWriter around it, write in a thread that ends the first time the
disk is full and is never restarted. Here a record that cannot be written raises an OSError and leaves nothing in the
file, and the next record is attempted as usual.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.files.atomic import Journal


class EventFile:
    """One file of curves over agent_steps.

    Args:
      folder: where event files go; created if it is missing.
      agent_steps: points of earlier files beyond this step are hidden.

    Raises:
      ModuleNotFoundError: tensorboard is not installed.
      OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, agent_steps: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of the wall times in their names
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(Journal(folder / name))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        # TensorBoard shows wall times; nothing is measured with them
        version = event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
        hiding = event_pb2.Event(wall_time=time.time(), step=agent_steps + 1, session_log=start)
        for event in (version, hiding):
            self._records.write(event.SerializeToString())

    def write(
        self,
        scalars: Mapping[str, float],
        step: int,
        histograms: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
    ) -> None:
        """Add one point to every curve, all or none.

        Args:
          scalars: by tag.
          step: agent_steps.
          histograms: counts [n] of the whole numbers 0, 1, 2, ... by tag; not all zero.

        Raises:
          OSError: nothing was written.
        """
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        values += [self._summary.Value(tag=tag, histo=_histogram(counts)) for tag, counts in histograms.items()]
        point = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._records.write(point.SerializeToString())

    def close(self) -> None:
        self._records.close()


def _histogram(counts: NDArray[np.int64]) -> Any:
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto

    present = np.flatnonzero(counts)
    values = np.arange(present[-1] + 1)
    counts = counts[: len(values)]
    return HistogramProto(
        min=float(present[0]),
        max=float(present[-1]),
        num=int(counts.sum()),
        sum=float((counts * values).sum()),
        sum_squares=float((counts * values**2).sum()),
        bucket_limit=(values + 0.5).tolist(),
        bucket=counts.tolist(),
    )
