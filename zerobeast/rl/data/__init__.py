"""Rollouts as an algorithm gets them: rows, batches, and the pace at which they are used."""

from zerobeast.rl.data.batch import Batch as Batch
from zerobeast.rl.data.pace import Pace as Pace
from zerobeast.rl.data.rollouts import Rollouts as Rollouts
