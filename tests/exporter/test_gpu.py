"""GPU samples, against a fake libnvidia-ml.so.1 that the real binding loads in its own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchscope.exporter import gpu

LIBRARY = r"""
#include <string.h>
typedef struct { unsigned int gpu, memory; } busy_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static int devices[2] = {0, 1};
int nvmlInitWithFlags(unsigned int flags) { return flags * 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *n) { *n = DEVICES; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **h) { *h = &devices[i]; return 0; }
int nvmlDeviceGetUUID(void *h, char *to, unsigned int n) {
  strncpy(to, *(int *)h ? "GPU-one" : "GPU-zero", n); return 0;
}
int nvmlDeviceGetUtilizationRates(void *h, busy_t *b) {
  b->gpu = 97 - *(int *)h; b->memory = 41; return 0;
}
int nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
  m->total = 85899345920ULL; m->used = 64424509440ULL + *(int *)h; m->free = 0; return 0;
}
int nvmlDeviceGetPowerUsage(void *h, unsigned int *mw) {
  *mw = 412345; return *(int *)h ? 3 : 0; /* 3: not supported */
}
int nvmlDeviceGetClockInfo(void *h, int kind, unsigned int *mhz) {
  *mhz = 1980 + *(int *)h; return kind == 1 ? 0 : 2; /* 1: SM */
}
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned int *c) {
  *c = 61 + *(int *)h; return sensor == 0 ? 0 : 2;
}
"""
PROGRAM = """
import json
from batchscope.exporter import gpu
sampler = gpu.start(10.0, wall=lambda: 123)
if sampler is None:
    print("null")
else:
    sampler.sample()
    rows, values = sampler.take(), sampler.values()
    sampler.close()
    print(json.dumps({"rows": rows, "values": [[*k, v] for k, v in values.items()],
                      "again": sampler.take(), "alive": sampler._thread.is_alive()}))
"""


def run_with_library(folder: Path, *, devices: int = 2) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the fake NVML library with")
    (folder / "fake.c").write_text(LIBRARY)
    target = str(folder / "libnvidia-ml.so.1")
    flags = ["-shared", "-fPIC", f"-DDEVICES={devices}", "-o", target]
    subprocess.run([compiler, *flags, str(folder / "fake.c")], check=True)
    return in_process(folder)


def in_process(folder: Path) -> Any:
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_every_reading_of_every_device_arrives_in_its_unit(tmp_path: Path) -> None:
    rows = run_with_library(tmp_path)["rows"]["gpu"]
    first_sample = {name: values[:2] for name, values in rows.items()}
    assert first_sample == {
        "device": [0, 1],
        "uuid": ["GPU-zero", "GPU-one"],
        "unix_ns": [123, 123],
        "sm_ratio": [0.97, 0.96],
        "memory_busy_ratio": [0.41, 0.41],
        "memory_used_bytes": [64424509440, 64424509441],
        "memory_total_bytes": [85899345920, 85899345920],
        "power_mw": [412345, None],
        "sm_clock_mhz": [1980, 1981],
        "temperature_c": [61, 62],
    }


def test_metrics_show_the_newest_and_leave_out_what_a_device_does_not_offer(tmp_path: Path) -> None:
    found = run_with_library(tmp_path)
    values = {(name, *labels): value for name, labels, value in found["values"]}
    assert values["gpu_power_watts", "0"] == 412345
    assert ("gpu_power_watts", "1") not in values
    assert len(values) == 2 * len(gpu.READINGS) - 1


def test_samples_are_taken_once_and_close_ends_the_thread(tmp_path: Path) -> None:
    found = run_with_library(tmp_path)
    assert len(found["rows"]["gpu"]["device"]) >= 4
    assert found["alive"] is False


def test_a_driver_without_devices_is_quiet(tmp_path: Path) -> None:
    assert run_with_library(tmp_path, devices=0) is None


def test_a_broken_library_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    assert in_process(tmp_path) is None
