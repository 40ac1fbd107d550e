"""The fold: records of one ring become rows, counters and a state that goes on anywhere."""

from batchscope.exporter.fold.ring import RingFold
from batchscope.exporter.fold.state import FOLD_VERSION

__all__ = ["FOLD_VERSION", "RingFold"]
