"""Samples of each NVIDIA device beside the batches: busy, memory, power, clock, temperature.

By NVML, on a thread of its own, 1 to 10 times a second. Without a driver, quiet. A reading that a
device does not offer is NULL, never 0.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Read = Callable[[Any, Any], float]
"""(NVML module, device handle) -> value in the column's unit; raises NVMLError."""
MAX_WAITING = 8_192
"""Samples kept for the store: with 8 devices at 10 Hz, 100 s."""


@dataclass(frozen=True)
class Reading:
    """One figure: its column in the table `gpu`, its metric (same integer, scaled there)."""

    column: str
    metric: str
    read: Read


def _busy(nvml: Any, handle: Any) -> Any:
    return nvml.nvmlDeviceGetUtilizationRates(handle)


def _memory(nvml: Any, handle: Any) -> Any:
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def _clock(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))


def _temperature(nvml: Any, handle: Any) -> int:
    return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


READINGS = (
    Reading("sm_ratio", "gpu_sm_ratio", lambda n, h: _busy(n, h).gpu / 100),
    Reading("memory_busy_ratio", "gpu_memory_busy_ratio", lambda n, h: _busy(n, h).memory / 100),
    Reading("memory_used_bytes", "gpu_memory_used_bytes", lambda n, h: int(_memory(n, h).used)),
    Reading("memory_total_bytes", "gpu_memory_total_bytes", lambda n, h: int(_memory(n, h).total)),
    Reading("power_mw", "gpu_power_watts", lambda n, h: int(n.nvmlDeviceGetPowerUsage(h))),
    Reading("sm_clock_mhz", "gpu_sm_clock_hertz", _clock),
    Reading("temperature_c", "gpu_temperature_celsius", _temperature),
)


@dataclass(frozen=True)
class Device:
    """One GPU under observation."""

    index: int
    uuid: str
    handle: Any


def start(hz: float = 1.0, *, wall: Callable[[], int] = time.time_ns) -> Sampler | None:
    """A running sampler, or None where there is no NVML, no driver or no device."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - foreign: no module, no library, no driver, no permission
        return None
    devices = _devices(nvml)
    if not devices:
        nvml.nvmlShutdown()
        return None
    return Sampler(nvml, devices, hz=min(max(hz, 1.0), 10.0), wall=wall)


class Sampler:
    """Reads all devices at `hz`; the newest for /metrics, all for the store, bounded."""

    def __init__(
        self, nvml: Any, devices: Sequence[Device], *, hz: float, wall: Callable[[], int]
    ) -> None:
        self._nvml, self._devices, self._wall = nvml, devices, wall
        self._newest: dict[int, dict[str, Any]] = {}
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self.sample()
        self._thread = threading.Thread(target=self._run, args=(1 / hz,), daemon=True)
        self._thread.start()

    def sample(self) -> None:
        """One sample of every device, now."""
        for device in self._devices:
            row = {"device": device.index, "uuid": device.uuid, "unix_ns": self._wall()}
            row |= {r.column: self._read(r, device) for r in READINGS}
            self._newest[device.index] = row
            self._waiting.append(row)

    def values(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Newest figures for /metrics; what a device does not offer is left out."""
        return {
            (reading.metric, (str(index),)): row[reading.column]
            for index, row in list(self._newest.items())
            for reading in READINGS
            if row[reading.column] is not None
        }

    def take(self) -> dict[str, dict[str, list[Any]]]:
        """Rows of the table `gpu` since the last call: {"gpu": columns}, or {}."""
        rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
        return {"gpu": {name: [row[name] for row in rows] for name in rows[0]}} if rows else {}

    def close(self) -> None:
        """Ends the thread and lets go of NVML."""
        self._stop.set()
        self._thread.join(2.0)
        self._nvml.nvmlShutdown()

    def _run(self, period_s: float) -> None:
        while not self._stop.wait(period_s):
            self.sample()

    def _read(self, reading: Reading, device: Device) -> float | None:
        try:
            return reading.read(self._nvml, device.handle)
        except self._nvml.NVMLError:
            return None


def _devices(nvml: Any) -> list[Device]:
    """All that this process may see; NVML's order."""
    return [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Device(index, str(nvml.nvmlDeviceGetUUID(handle)), handle)
