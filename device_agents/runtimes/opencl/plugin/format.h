// The bytes of an OpenCL module, as TVM's code generator writes them: little endian, lengths as 64-bit numbers.
//
//   string format               "cl": OpenCL C
//   u64 count, then for each    string key; string name; vector of argument types (u8 code, u8 bits, u16 lanes);
//     kernel                    vector of launch tags (strings); vector of i32 tags of arguments
//   string code                 the sources of all kernels, each after a line "// Function: NAME"
#pragma once

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace fleet_opencl {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they lie in memory");

struct KernelSpec {
  std::string key;
  std::string name;
  std::vector<DLDataType> arguments;
  std::vector<std::string> launch_tags;
  std::vector<int32_t> argument_tags;
};

struct ModuleContent {
  std::string format;
  std::vector<KernelSpec> kernels;
  std::string code;
};

class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  T Number() {
    T value{};
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }

  std::string String() {
    const auto size = Number<uint64_t>();
    return std::string(Take(size), size);
  }

  template <typename Read>
  auto Vector(Read read) {
    std::vector<decltype(read())> items;
    // Each item takes a byte at least, so a count beyond the rest is damage, not a list.
    for (uint64_t left = Number<uint64_t>(); left > 0; --left) {
      if (left > bytes_.size() - position_) Fail();
      items.push_back(read());
    }
    return items;
  }

 private:
  const char* Take(uint64_t size) {
    if (size > bytes_.size() - position_) Fail();
    const char* start = bytes_.data() + position_;
    position_ += size;
    return start;
  }

  [[noreturn]] void Fail() const {
    TVM_FFI_THROW(ValueError) << "the OpenCL module is damaged at byte " << position_ << " of " << bytes_.size();
    TVM_FFI_UNREACHABLE();
  }

  std::string bytes_;
  uint64_t position_{0};
};

inline ModuleContent ParseModule(std::string bytes) {
  Reader reader(std::move(bytes));
  ModuleContent content;
  content.format = reader.String();
  content.kernels = reader.Vector([&] {
    KernelSpec kernel;
    kernel.key = reader.String();
    kernel.name = reader.String();
    kernel.arguments = reader.Vector([&] {
      DLDataType type{};
      type.code = reader.Number<uint8_t>();
      type.bits = reader.Number<uint8_t>();
      type.lanes = reader.Number<uint16_t>();
      return type;
    });
    kernel.launch_tags = reader.Vector([&] { return reader.String(); });
    kernel.argument_tags = reader.Vector([&] { return reader.Number<int32_t>(); });
    return kernel;
  });
  content.code = reader.String();
  return content;
}

class Writer {
 public:
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  void String(const std::string& text) {
    Number<uint64_t>(text.size());
    bytes_ += text;
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

inline std::string FormatModule(const ModuleContent& content) {
  Writer writer;
  writer.String(content.format);
  writer.Number<uint64_t>(content.kernels.size());
  for (const KernelSpec& kernel : content.kernels) {
    writer.String(kernel.key);
    writer.String(kernel.name);
    writer.Number<uint64_t>(kernel.arguments.size());
    for (DLDataType type : kernel.arguments) {
      writer.Number<uint8_t>(type.code);
      writer.Number<uint8_t>(type.bits);
      writer.Number<uint16_t>(type.lanes);
    }
    writer.Number<uint64_t>(kernel.launch_tags.size());
    for (const std::string& tag : kernel.launch_tags) writer.String(tag);
    writer.Number<uint64_t>(kernel.argument_tags.size());
    for (int32_t tag : kernel.argument_tags) writer.Number<int32_t>(tag);
  }
  writer.String(content.code);
  return writer.Take();
}

// Each kernel's source by its name.
inline std::map<std::string, std::string> SplitSources(const std::string& code) {
  static const std::string kMarker = "// Function: ";
  std::map<std::string, std::string> sources;
  for (size_t at = code.find(kMarker); at != std::string::npos;) {
    const size_t name_at = at + kMarker.size();
    const size_t line_end = std::min(code.find('\n', name_at), code.size());
    const size_t next = code.find(kMarker, line_end);
    std::string name = code.substr(name_at, line_end - name_at);
    while (!name.empty() && (name.back() == ' ' || name.back() == '\r')) name.pop_back();
    sources[name] = code.substr(line_end, next == std::string::npos ? next : next - line_end);
    at = next;
  }
  return sources;
}

}  // namespace fleet_opencl
