// A module of OpenCL kernels: compiled by the device's driver at the first call of each, launched as TVM's host code asks.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/extra/module.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "format.h"
#include "plugin.h"
#include "workspace.h"

namespace tvm {
namespace runtime {

// As in src/runtime/metadata.h, which does not compile from the wheel. What the code generator hands over.
class FunctionInfoObj : public ffi::Object {
 public:
  ffi::String name;
  ffi::Array<DLDataType> arg_types;
  ffi::Array<ffi::String> launch_param_tags;
  ffi::Array<ffi::Any> arg_extra_tags;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("runtime.FunctionInfo", FunctionInfoObj, ffi::Object);
};

}  // namespace runtime
}  // namespace tvm

namespace fleet_opencl {
namespace {

using tvm::ffi::AnyView;
using tvm::ffi::Bytes;
using tvm::ffi::Function;
using tvm::ffi::Map;
using tvm::ffi::Optional;
using tvm::ffi::String;

constexpr size_t kMostLogCharacters = 3000;

struct Kernel {
  cl_kernel kernel{nullptr};
  std::mutex mutex;  // an argument set by one thread must not be launched by another
};

// Where each launch tag's number goes: 0-2 work groups, 3-5 work items of one.
int LaunchSlot(const std::string& tag) {
  static const std::array<std::string, 6> kTags = {"blockIdx.x",  "blockIdx.y",  "blockIdx.z",
                                                   "threadIdx.x", "threadIdx.y", "threadIdx.z"};
  const auto found = std::find(kTags.begin(), kTags.end(), tag);
  if (found == kTags.end()) {
    TVM_FFI_THROW(ValueError) << "this OpenCL runtime cannot launch by " << tag << "; it knows blocks and threads only";
  }
  return static_cast<int>(found - kTags.begin());
}

std::string BuildLog(cl_program program, cl_device_id device) {
  size_t size = 0;
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  return log.substr(0, std::min(log.find('\0'), kMostLogCharacters));
}

cl_kernel Compile(Device& device, const std::string& name, const std::string& source) {
  const char* text = source.data();
  const size_t size = source.size();
  cl_int code = CL_SUCCESS;
  cl_program program = clCreateProgramWithSource(device.context(), 1, &text, &size, &code);
  Check(code, "clCreateProgramWithSource");
  cl_device_id id = device.id();
  code = clBuildProgram(program, 1, &id, "", nullptr, nullptr);
  if (code != CL_SUCCESS) {
    const std::string log = BuildLog(program, id);
    clReleaseProgram(program);
    Fail(code, "clBuildProgram", "the driver does not compile kernel " + name + ":\n" + log);
  }
  cl_kernel kernel = clCreateKernel(program, name.c_str(), &code);
  clReleaseProgram(program);  // the kernel keeps it
  if (code != CL_SUCCESS) Fail(code, "clCreateKernel", "kernel " + name);
  return kernel;
}

// One kernel on every device that it was called on.
class Launcher {
 public:
  Launcher(KernelSpec spec, std::string source) : spec_(std::move(spec)), source_(std::move(source)) {
    for (const std::string& tag : spec_.launch_tags) {
      slots_.push_back(LaunchSlot(tag));
      dimensions_ = std::max<cl_uint>(dimensions_, slots_.back() % 3 + 1);
    }
    kernels_.resize(AllDevices().size());
  }

  ~Launcher() {
    for (const auto& kernel : kernels_) {
      if (kernel) clReleaseKernel(kernel->kernel);
    }
  }

  void Launch(const AnyView* values, int count) {
    const size_t wanted = spec_.arguments.size() + slots_.size();
    if (static_cast<size_t>(count) != wanted) {
      TVM_FFI_THROW(TypeError) << "kernel " << spec_.name << " takes " << wanted << " values, not " << count;
    }
    const int index = CurrentDevice();
    Device& device = DeviceAt(index);
    Kernel& kernel = KernelOn(device, index);
    std::array<size_t, 6> extents = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < slots_.size(); ++i) {
      extents[slots_[i]] = std::max<int64_t>(1, values[spec_.arguments.size() + i].cast<int64_t>());
    }
    std::array<size_t, 3> global;
    for (size_t i = 0; i < 3; ++i) global[i] = extents[i] * extents[i + 3];
    std::lock_guard<std::mutex> lock(kernel.mutex);
    for (size_t i = 0; i < spec_.arguments.size(); ++i) SetArgument(kernel.kernel, i, values[i]);
    device.Enqueue(kernel.kernel, dimensions_, global.data(), extents.data() + 3);
  }

 private:
  Kernel& KernelOn(Device& device, int index) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!kernels_[index]) {
      auto made = std::make_unique<Kernel>();
      made->kernel = Compile(device, spec_.name, source_);
      kernels_[index] = std::move(made);
    }
    return *kernels_[index];
  }

  void SetArgument(cl_kernel kernel, size_t i, AnyView value) const {
    const DLDataType type = spec_.arguments[i];
    if (type.code == kDLOpaqueHandle) {
      auto memory = static_cast<cl_mem>(value.cast<void*>());
      return Set(kernel, i, memory);
    }
    if (type.code == kDLFloat && type.bits == 32) return Set(kernel, i, static_cast<cl_float>(value.cast<double>()));
    if (type.code == kDLFloat && type.bits == 64) return Set(kernel, i, value.cast<double>());
    const bool is_integer = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool;
    if (is_integer && type.bits == 64) return Set(kernel, i, value.cast<int64_t>());
    if (is_integer && type.bits == 32) return Set(kernel, i, static_cast<cl_int>(value.cast<int64_t>()));
    if (is_integer && type.bits == 16) return Set(kernel, i, static_cast<cl_short>(value.cast<int64_t>()));
    if (is_integer && type.bits <= 8) return Set(kernel, i, static_cast<cl_char>(value.cast<int64_t>()));
    TVM_FFI_THROW(TypeError) << "kernel " << spec_.name << ": argument " << i << " is a "
                             << tvm::ffi::DLDataTypeToString(type) << ", which cannot be passed by value";
  }

  template <typename T>
  void Set(cl_kernel kernel, size_t i, T value) const {
    const cl_int code = clSetKernelArg(kernel, static_cast<cl_uint>(i), sizeof(T), &value);
    if (code != CL_SUCCESS) Fail(code, "clSetKernelArg", spec_.name + ", argument " + std::to_string(i));
  }

  KernelSpec spec_;
  std::string source_;
  std::vector<int> slots_;
  cl_uint dimensions_{1};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

class OpenClModule final : public tvm::ffi::ModuleObj {
 public:
  explicit OpenClModule(ModuleContent content) : content_(std::move(content)), sources_(SplitSources(content_.code)) {}

  const char* kind() const final { return "opencl"; }

  int GetPropertyMask() const final {
    return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable;
  }

  Optional<Function> GetFunction(const String& name) final {
    const std::string wanted(name.data(), name.size());
    const auto found = std::find_if(content_.kernels.begin(), content_.kernels.end(),
                                    [&](const KernelSpec& kernel) { return kernel.key == wanted; });
    if (found == content_.kernels.end()) return std::nullopt;
    RefuseWhatCannotRun();
    const auto source = sources_.find(wanted);
    if (source == sources_.end()) {
      TVM_FFI_THROW(ValueError) << "the OpenCL module has no source of its kernel " << wanted;
    }
    auto launcher = std::make_shared<Launcher>(*found, source->second);
    return Function::FromPacked([launcher](const AnyView* values, int32_t count, tvm::ffi::Any*) {
      launcher->Launch(values, count);
    });
  }

  bool ImplementsFunction(const String& name) final {
    const std::string wanted(name.data(), name.size());
    return std::any_of(content_.kernels.begin(), content_.kernels.end(),
                       [&](const KernelSpec& kernel) { return kernel.key == wanted; });
  }

  Bytes SaveToBytes() const final { return Bytes(FormatModule(content_)); }

  String InspectSource(const String&) const final { return String(content_.code); }

 private:
  // Not before a kernel is wanted: a module may be made here to run elsewhere.
  void RefuseWhatCannotRun() const {
    if (content_.format != "cl") {
      TVM_FFI_THROW(ValueError) << "the OpenCL module holds " << content_.format << ", not OpenCL C";
    }
    for (const char* word : {"image2d_t", "image2d_array_t", "sampler_t"}) {
      if (content_.code.find(word) != std::string::npos) {
        TVM_FFI_THROW(ValueError) << "the OpenCL module uses images (" << word
                                  << "), which this runtime does not have; build it without texture memory, or "
                                     "install TVM's own libtvm_runtime_opencl.so";
      }
    }
  }

  ModuleContent content_;
  std::map<std::string, std::string> sources_;
};

tvm::ffi::Module MakeModule(ModuleContent content) {
  return tvm::ffi::Module(tvm::ffi::make_object<OpenClModule>(std::move(content)));
}

// Called by the code generator with what it has just written, so that a program runs without being exported first.
tvm::ffi::Module CreateModule(Bytes code, String format, Map<String, tvm::ffi::ObjectRef> functions,
                              Map<String, String>) {
  ModuleContent content;
  content.format = std::string(format.data(), format.size());
  content.code = std::string(code.data(), code.size());
  for (const auto& [key, value] : functions) {
    const auto* given = value.as<tvm::runtime::FunctionInfoObj>();
    if (given == nullptr) TVM_FFI_THROW(TypeError) << "no runtime.FunctionInfo of kernel " << key;
    KernelSpec kernel;
    kernel.key = std::string(key.data(), key.size());
    kernel.name = std::string(given->name.data(), given->name.size());
    for (DLDataType type : given->arg_types) kernel.arguments.push_back(type);
    for (const String& tag : given->launch_param_tags) kernel.launch_tags.emplace_back(tag.data(), tag.size());
    for (const auto& tag : given->arg_extra_tags) {
      kernel.argument_tags.push_back(static_cast<int32_t>(tag.cast<int64_t>()));
    }
    content.kernels.push_back(std::move(kernel));
  }
  return MakeModule(std::move(content));
}

tvm::ffi::Module LoadModule(Bytes bytes) { return MakeModule(ParseModule(std::string(bytes.data(), bytes.size()))); }

}  // namespace

void InstallModule() {
  Function::SetGlobal("ffi.Module.load_from_bytes.opencl", Function::FromTyped(LoadModule), /*override=*/true);
  Function::SetGlobal("ffi.Module.create.opencl", Function::FromTyped(CreateModule), /*override=*/true);
}

}  // namespace fleet_opencl
