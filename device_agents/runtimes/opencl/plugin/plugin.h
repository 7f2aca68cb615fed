// The parts that this plug-in registers with TVM, see plugin.cc.
#pragma once

#include <tvm/ffi/function.h>

namespace fleet_opencl {

void InstallDeviceApi();
void InstallModule();
void InstallTimer();

}  // namespace fleet_opencl
