// The OpenCL devices of this process: one context and one in-order queue each, opened at first use.
//
// Order: platforms as the loader lists them, their devices as they list them, then sorted by type, GPUs first and CPUs
// last. device_agents/drivers/opencl/devices.py sorts alike, so that an index means the same device on both sides.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "errors.h"

namespace fleet_opencl {

class Device {
 public:
  Device(cl_device_id id, cl_device_type type);
  Device(const Device&) = delete;

  cl_device_id id() const { return id_; }
  cl_device_type type() const { return type_; }
  cl_context context();
  cl_command_queue queue();

  cl_mem Allocate(size_t size_bytes);
  void Enqueue(cl_kernel kernel, cl_uint dimensions, const size_t* global, const size_t* local);
  void Finish();

  // Between the two, the device's own times of all kernels are added up [ns].
  void StartRecording();
  int64_t StopRecording();

  std::string Text(cl_device_info what) const;
  template <typename T>
  T Number(cl_device_info what) const {
    T value{};
    Check(clGetDeviceInfo(id_, what, sizeof(value), &value, nullptr), "clGetDeviceInfo");
    return value;
  }

 private:
  void Open();
  void FoldEvents();

  cl_device_id id_;
  cl_device_type type_;
  std::once_flag opened_;
  cl_context context_{nullptr};
  cl_command_queue queue_{nullptr};

  std::mutex recording_mutex_;
  bool is_recording_{false};
  int64_t recorded_ns_{0};
  std::vector<cl_event> events_;
};

// All devices; enumerated once.
const std::vector<std::unique_ptr<Device>>& AllDevices();

// The device of an index of TVM's.
Device& DeviceAt(int index);

// What kernels of this thread run on.
int CurrentDevice();
void SetCurrentDevice(int index);

}  // namespace fleet_opencl
