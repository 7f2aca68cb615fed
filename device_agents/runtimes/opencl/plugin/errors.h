// Turns OpenCL's error codes into errors of TVM: those about memory are a MemoryError, also in Python.
#pragma once

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <tvm/ffi/error.h>

#include <string>

namespace fleet_opencl {

inline std::string ErrorName(cl_int code) {
  switch (code) {
    case CL_DEVICE_NOT_AVAILABLE:
      return "CL_DEVICE_NOT_AVAILABLE";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
      return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES:
      return "CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY:
      return "CL_OUT_OF_HOST_MEMORY";
    case CL_PROFILING_INFO_NOT_AVAILABLE:
      return "CL_PROFILING_INFO_NOT_AVAILABLE";
    case CL_BUILD_PROGRAM_FAILURE:
      return "CL_BUILD_PROGRAM_FAILURE";
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
      return "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";
    case CL_INVALID_MEM_OBJECT:
      return "CL_INVALID_MEM_OBJECT";
    case CL_INVALID_KERNEL_ARGS:
      return "CL_INVALID_KERNEL_ARGS";
    case CL_INVALID_WORK_GROUP_SIZE:
      return "CL_INVALID_WORK_GROUP_SIZE";
    case CL_INVALID_WORK_ITEM_SIZE:
      return "CL_INVALID_WORK_ITEM_SIZE";
    case CL_INVALID_BUFFER_SIZE:
      return "CL_INVALID_BUFFER_SIZE";
    default:
      return "OpenCL error " + std::to_string(code);
  }
}

inline bool IsAboutMemory(cl_int code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY;
}

// `call` is the function of OpenCL that failed, `detail` what it was asked for.
[[noreturn]] inline void Fail(cl_int code, const std::string& call, const std::string& detail = "") {
  const std::string text = call + " failed: " + ErrorName(code) + (detail.empty() ? "" : "; ") + detail;
  if (IsAboutMemory(code)) TVM_FFI_THROW(MemoryError) << "out of memory on the OpenCL device: " << text;
  TVM_FFI_THROW(RuntimeError) << text;
  TVM_FFI_UNREACHABLE();
}

inline void Check(cl_int code, const char* call) {
  if (code != CL_SUCCESS) Fail(code, call);
}

}  // namespace fleet_opencl
