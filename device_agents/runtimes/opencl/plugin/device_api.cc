// What TVM asks of a device: its properties, memory, copies. DLTensor.data of an OpenCL tensor is its cl_mem.
#include <tvm/runtime/device_api.h>

#include "plugin.h"
#include "workspace.h"

namespace fleet_opencl {
namespace {

using tvm::ffi::Any;
using tvm::runtime::DeviceAttrKind;

class OpenClDeviceApi final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(DLDevice device) final { SetCurrentDevice(device.device_id); }

  void GetAttr(DLDevice device, DeviceAttrKind kind, Any* value) final {
    if (kind == tvm::runtime::kExist) {
      *value = device.device_id >= 0 && static_cast<size_t>(device.device_id) < AllDevices().size();
      return;
    }
    Attribute(DeviceAt(device.device_id), kind, value);
  }

  void* AllocDataSpace(DLDevice device, size_t size_bytes, size_t, DLDataType) final {
    return DeviceAt(device.device_id).Allocate(size_bytes);
  }

  void* AllocDataSpace(DLDevice device, int ndim, const int64_t* shape, DLDataType dtype,
                       tvm::ffi::Optional<tvm::ffi::String> scope) final {
    if (scope.has_value() && scope.value() != "" && scope.value() != "global") {
      TVM_FFI_THROW(RuntimeError) << "this OpenCL runtime has buffers and no images (textures): memory of scope "
                                  << scope.value() << " needs TVM's own libtvm_runtime_opencl.so";
    }
    return DeviceAPI::AllocDataSpace(device, ndim, shape, dtype, scope);
  }

  void FreeDataSpace(DLDevice device, void* data) final {
    // Kernels that use it hold a reference of their own: OpenCL frees it after the last.
    Check(clReleaseMemObject(static_cast<cl_mem>(data)), "clReleaseMemObject");
  }

  void StreamSync(DLDevice device, TVMStreamHandle) final { DeviceAt(device.device_id).Finish(); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size_bytes,
                      DLDevice from_device, DLDevice to_device, DLDataType, TVMStreamHandle) final {
    if (size_bytes == 0) return;
    const bool is_from_host = from_device.device_type == kDLCPU, is_to_host = to_device.device_type == kDLCPU;
    auto source = static_cast<cl_mem>(const_cast<void*>(from));
    auto destination = static_cast<cl_mem>(to);
    if (is_from_host) {
      Write(DeviceAt(to_device.device_id), destination, to_offset, static_cast<const char*>(from) + from_offset,
            size_bytes);
    } else if (is_to_host) {
      Read(DeviceAt(from_device.device_id), source, from_offset, static_cast<char*>(to) + to_offset, size_bytes);
    } else if (from_device.device_id == to_device.device_id) {
      Check(clEnqueueCopyBuffer(DeviceAt(to_device.device_id).queue(), source, destination, from_offset, to_offset,
                                size_bytes, 0, nullptr, nullptr),
            "clEnqueueCopyBuffer");
    } else {
      std::string between(size_bytes, '\0');  // two devices have two contexts
      Read(DeviceAt(from_device.device_id), source, from_offset, between.data(), size_bytes);
      Write(DeviceAt(to_device.device_id), destination, to_offset, between.data(), size_bytes);
    }
  }

 private:
  static void Read(Device& device, cl_mem source, size_t offset, char* to, size_t size_bytes) {
    Check(clEnqueueReadBuffer(device.queue(), source, CL_TRUE, offset, size_bytes, to, 0, nullptr, nullptr),
          "clEnqueueReadBuffer");
  }

  static void Write(Device& device, cl_mem destination, size_t offset, const char* from, size_t size_bytes) {
    Check(clEnqueueWriteBuffer(device.queue(), destination, CL_TRUE, offset, size_bytes, from, 0, nullptr, nullptr),
          "clEnqueueWriteBuffer");
  }

  // Leaves None where OpenCL does not tell.
  static void Attribute(const Device& device, DeviceAttrKind kind, Any* value) {
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock:
        *value = static_cast<int64_t>(device.Number<size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE));
        return;
      case tvm::runtime::kWarpSize:
        *value = 1;
        return;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *value = static_cast<int64_t>(device.Number<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE));
        return;
      case tvm::runtime::kDeviceName:
        *value = tvm::ffi::String(device.Text(CL_DEVICE_NAME));
        return;
      case tvm::runtime::kDriverVersion:
        *value = tvm::ffi::String(device.Text(CL_DRIVER_VERSION));
        return;
      case tvm::runtime::kMaxClockRate:  // kHz
        *value = static_cast<int64_t>(device.Number<cl_uint>(CL_DEVICE_MAX_CLOCK_FREQUENCY)) * 1000;
        return;
      case tvm::runtime::kMultiProcessorCount:
        *value = static_cast<int64_t>(device.Number<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS));
        return;
      case tvm::runtime::kMaxThreadDimensions:
        *value = Dimensions(device);
        return;
      case tvm::runtime::kTotalGlobalMemory:
        *value = static_cast<int64_t>(device.Number<cl_ulong>(CL_DEVICE_GLOBAL_MEM_SIZE));
        return;
      case tvm::runtime::kL2CacheSizeBytes:
        *value = static_cast<int64_t>(device.Number<cl_ulong>(CL_DEVICE_GLOBAL_MEM_CACHE_SIZE));
        return;
      default:
        return;
    }
  }

  static tvm::ffi::String Dimensions(const Device& device) {
    std::vector<size_t> sizes(device.Number<cl_uint>(CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS));
    Check(clGetDeviceInfo(device.id(), CL_DEVICE_MAX_WORK_ITEM_SIZES, sizes.size() * sizeof(size_t), sizes.data(),
                          nullptr),
          "clGetDeviceInfo");
    std::string text = "[";
    for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
    return text + "]";
  }
};

}  // namespace

void InstallDeviceApi() {
  tvm::ffi::Function::SetGlobal("device_api.opencl", tvm::ffi::Function::FromTyped([]() -> void* {
                                  static auto* api = new OpenClDeviceApi();
                                  return static_cast<tvm::runtime::DeviceAPI*>(api);
                                }),
                                /*override=*/true);
}

}  // namespace fleet_opencl
