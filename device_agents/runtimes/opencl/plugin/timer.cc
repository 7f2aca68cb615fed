// Times by the device's own clock: the sum over all kernels between start and stop. What lies between kernels does not
// count, nor does the host. `fleet.opencl.use_events(false)` lets the host's clock time instead: for whole models.
#include <tvm/ffi/device.h>
#include <tvm/ffi/object.h>

#include <atomic>
#include <chrono>

#include "plugin.h"
#include "workspace.h"

namespace tvm {
namespace runtime {

// As in tvm/runtime/timer.h, which does not compile from the wheel: it includes a header that is not there.
class TimerNode : public ffi::Object {
 public:
  virtual void Start() = 0;
  virtual void Stop() = 0;
  virtual int64_t SyncAndGetElapsedNanos() = 0;
  virtual ~TimerNode() {}

  static constexpr const bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO("runtime.TimerNode", TimerNode, ffi::Object);
};

}  // namespace runtime
}  // namespace tvm

namespace fleet_opencl {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> uses_events{true};

class EventTimer final : public tvm::runtime::TimerNode {
 public:
  explicit EventTimer(int index) : device_(DeviceAt(index)) {}

  void Start() final { device_.StartRecording(); }
  void Stop() final { elapsed_ns_ = device_.StopRecording(); }
  int64_t SyncAndGetElapsedNanos() final { return elapsed_ns_; }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("fleet.opencl.EventTimer", EventTimer, tvm::runtime::TimerNode);

 private:
  Device& device_;
  int64_t elapsed_ns_{0};
};

class WallTimer final : public tvm::runtime::TimerNode {
 public:
  explicit WallTimer(int index) : device_(DeviceAt(index)) {}

  void Start() final {
    device_.Finish();
    started_ = Clock::now();
  }
  void Stop() final {
    device_.Finish();
    elapsed_ = Clock::now() - started_;
  }
  int64_t SyncAndGetElapsedNanos() final {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed_).count();
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("fleet.opencl.WallTimer", WallTimer, tvm::runtime::TimerNode);

 private:
  Device& device_;
  Clock::time_point started_;
  Clock::duration elapsed_{};
};

tvm::ffi::ObjectRef MakeTimer(DLDevice device) {
  if (uses_events) return tvm::ffi::ObjectRef(tvm::ffi::make_object<EventTimer>(device.device_id));
  return tvm::ffi::ObjectRef(tvm::ffi::make_object<WallTimer>(device.device_id));
}

}  // namespace

void InstallTimer() {
  using tvm::ffi::Function;
  Function::SetGlobal("runtime.timer.opencl", Function::FromTyped(MakeTimer), /*override=*/true);
  Function::SetGlobal("fleet.opencl.use_events", Function::FromTyped([](bool value) { uses_events = value; }),
                      /*override=*/true);
}

}  // namespace fleet_opencl
