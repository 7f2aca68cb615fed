"""Classifies errors of GPU runtimes: a fault of the candidate, a broken context, or a lost device. Pure.

After some errors CUDA fails every later call of the process with the same one, until it ends: the API's documents say
that the process must be terminated and relaunched. HIP uses the same texts.

https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
https://rocm.docs.amd.com/projects/HIP/en/latest/reference/error_codes.html
"""

from __future__ import annotations

from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import ErrorKind

_BREAKS_CONTEXT = (
    *("illegal memory access", "ILLEGAL_ADDRESS", "IllegalAddress"),
    *("unspecified launch failure", "LAUNCH_FAILED", "LaunchFailure"),
    *("misaligned address", "MISALIGNED_ADDRESS"),
    *("illegal instruction", "ILLEGAL_INSTRUCTION"),
    *("invalid program counter", "INVALID_PC"),
    *("invalid address space", "operation not supported on global/shared address space", "INVALID_ADDRESS_SPACE"),
    *("device-side assert triggered", "CUDA_ERROR_ASSERT"),
    *("launch timed out and was terminated", "LAUNCH_TIMEOUT"),
    *("hardware stack error", "HARDWARE_STACK_ERROR"),
)
"""Texts and names of errors that a kernel causes and that stay with the process."""

_LOSES_DEVICE = (
    *("uncorrectable ECC error", "ECC_UNCORRECTABLE"),
    *("uncorrectable NVLink error", "NVLINK_UNCORRECTABLE"),
    *("no CUDA-capable device is detected", "ERROR_NO_DEVICE", "no ROCm-capable device is detected"),
    *("devices are busy or unavailable", "DEVICE_UNAVAILABLE"),
    *("CUDA driver version is insufficient", "driver/library version mismatch"),
    *("system not yet initialized", "SYSTEM_NOT_READY"),
    *("Device API cuda is not enabled", "Device API rocm is not enabled"),
)
"""Whatever the candidate, the device cannot be used."""


def gpu_failure(failure: CandidateFailed) -> CandidateFailed:
    """Return the failure for an error's text, with the state of the process and the device."""
    text = str(failure)
    if any(words in text for words in _LOSES_DEVICE):
        return CandidateFailed(ErrorKind.DEVICE_FAULTED, text, is_fatal=True)
    if any(words in text for words in _BREAKS_CONTEXT):
        return CandidateFailed(failure.kind, text, is_fatal=True)
    return failure
