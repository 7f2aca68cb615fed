// An OpenCL runtime for Apache TVM: what the stock wheel's `opencl` code generator needs to run.
//
// Nothing happens when this library is loaded. Whoever loads it compares `fleet_opencl_built_for` with the TVM that is
// installed, since TVM's C++ classes differ from one release to the next, and then calls `fleet_opencl_install`.
#include "plugin.h"

#include <exception>

#ifndef FLEET_BUILT_FOR
#error "define FLEET_BUILT_FOR as the versions of apache-tvm and apache-tvm-ffi"
#endif

extern "C" {

__attribute__((visibility("default"))) const char* fleet_opencl_built_for() { return FLEET_BUILT_FOR; }

// Returns 0, or 1 when TVM did not take it.
__attribute__((visibility("default"))) int fleet_opencl_install() {
  try {
    fleet_opencl::InstallDeviceApi();
    fleet_opencl::InstallModule();
    fleet_opencl::InstallTimer();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
}
