#include "workspace.h"

#include <algorithm>

namespace fleet_opencl {
namespace {

constexpr size_t kMostEventsHeld = 4096;

thread_local int current_device = 0;

int Rank(cl_device_type type) {
  if (type & CL_DEVICE_TYPE_GPU) return 0;
  if (type & CL_DEVICE_TYPE_ACCELERATOR) return 1;
  return type & CL_DEVICE_TYPE_CPU ? 3 : 2;
}

std::vector<cl_platform_id> Platforms() {
  cl_uint count = 0;
  // The loader reports an error rather than zero where no driver is installed.
  if (clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_platform_id> platforms(count);
  Check(clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  return platforms;
}

std::vector<std::unique_ptr<Device>> Enumerate() {
  std::vector<std::unique_ptr<Device>> found;
  for (cl_platform_id platform : Platforms()) {
    cl_uint count = 0;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) continue;
    std::vector<cl_device_id> ids(count);
    Check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr), "clGetDeviceIDs");
    for (cl_device_id id : ids) {
      cl_device_type type = 0;
      Check(clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof(type), &type, nullptr), "clGetDeviceInfo");
      found.push_back(std::make_unique<Device>(id, type));
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return Rank(a->type()) < Rank(b->type()); });
  return found;
}

}  // namespace

Device::Device(cl_device_id id, cl_device_type type) : id_(id), type_(type) {}

void Device::Open() {
  cl_int code = CL_SUCCESS;
  context_ = clCreateContext(nullptr, 1, &id_, nullptr, nullptr, &code);
  Check(code, "clCreateContext");
  queue_ = clCreateCommandQueue(context_, id_, CL_QUEUE_PROFILING_ENABLE, &code);
  Check(code, "clCreateCommandQueue");
}

cl_context Device::context() {
  std::call_once(opened_, [this] { Open(); });
  return context_;
}

cl_command_queue Device::queue() {
  context();
  return queue_;
}

cl_mem Device::Allocate(size_t size_bytes) {
  const auto largest = Number<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  if (size_bytes > largest) {
    TVM_FFI_THROW(MemoryError) << "out of memory on the OpenCL device: a buffer of " << size_bytes
                               << " bytes where the largest that it gives is " << largest << " bytes";
  }
  cl_int code = CL_SUCCESS;
  // A buffer of size zero is an error in OpenCL and none in TVM.
  cl_mem memory = clCreateBuffer(context(), CL_MEM_READ_WRITE, std::max<size_t>(size_bytes, 1), nullptr, &code);
  if (code != CL_SUCCESS) Fail(code, "clCreateBuffer", std::to_string(size_bytes) + " bytes");
  return memory;
}

void Device::Enqueue(cl_kernel kernel, cl_uint dimensions, const size_t* global, const size_t* local) {
  std::lock_guard<std::mutex> lock(recording_mutex_);
  cl_event event = nullptr;
  Check(clEnqueueNDRangeKernel(queue(), kernel, dimensions, nullptr, global, local, 0, nullptr,
                               is_recording_ ? &event : nullptr),
        "clEnqueueNDRangeKernel");
  if (event == nullptr) return;
  events_.push_back(event);
  if (events_.size() >= kMostEventsHeld) FoldEvents();
}

void Device::Finish() { Check(clFinish(queue()), "clFinish"); }

void Device::StartRecording() {
  Finish();
  std::lock_guard<std::mutex> lock(recording_mutex_);
  for (cl_event event : events_) clReleaseEvent(event);
  events_.clear();
  recorded_ns_ = 0;
  is_recording_ = true;
}

int64_t Device::StopRecording() {
  std::lock_guard<std::mutex> lock(recording_mutex_);
  is_recording_ = false;
  FoldEvents();
  return recorded_ns_;
}

void Device::FoldEvents() {
  Finish();
  std::vector<cl_event> events;
  events.swap(events_);
  cl_int problem = CL_SUCCESS;
  for (cl_event event : events) {
    cl_int status = CL_COMPLETE;
    cl_ulong started = 0, ended = 0;
    cl_int code = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
    if (code == CL_SUCCESS && status < 0) code = status;
    if (code == CL_SUCCESS) {
      code = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof(started), &started, nullptr);
    }
    if (code == CL_SUCCESS) {
      code = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof(ended), &ended, nullptr);
    }
    clReleaseEvent(event);
    if (code != CL_SUCCESS) problem = code;
    recorded_ns_ += static_cast<int64_t>(ended - started);
  }
  Check(problem, "a kernel, or reading its time,");
}

std::string Device::Text(cl_device_info what) const {
  size_t size = 0;
  Check(clGetDeviceInfo(id_, what, 0, nullptr, &size), "clGetDeviceInfo");
  std::string text(size, '\0');
  Check(clGetDeviceInfo(id_, what, size, text.data(), nullptr), "clGetDeviceInfo");
  return text.substr(0, text.find('\0'));
}

const std::vector<std::unique_ptr<Device>>& AllDevices() {
  // Never freed: drivers' threads may outlive static objects.
  static const auto* devices = new std::vector<std::unique_ptr<Device>>(Enumerate());
  return *devices;
}

Device& DeviceAt(int index) {
  const auto& devices = AllDevices();
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    TVM_FFI_THROW(ValueError) << "there is no OpenCL device " << index << "; " << devices.size() << " found";
  }
  return *devices[index];
}

int CurrentDevice() { return current_device; }

void SetCurrentDevice(int index) {
  DeviceAt(index);
  current_device = index;
}

}  // namespace fleet_opencl
