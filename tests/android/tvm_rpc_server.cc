// A TVM RPC server for this machine, on the wheel's own libraries, with the command line of TVM's C++ server:
//
//   tvm_rpc server --host=127.0.0.1 --port=9090 --port-end=9190 --key=phone [--work-dir=DIR] [--tracker=HOST:PORT]
//
// It stands in for the tvm_rpc that a user builds with the Android NDK. What matters to a client is alike: the
// handshake, one session at a time, a process of its own for each, `-timeout=` in whole seconds (a fraction ends the
// server, as it does there), files below the working directory. Libraries named in the colon-separated environment
// variable TVM_RPC_PRELOAD are loaded before the first session.
#include <dlfcn.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

namespace {

constexpr int32_t kMagic = 0xFF271;
constexpr int32_t kMismatch = kMagic + 2;
constexpr int32_t kTrackerMagic = 0x2F271;

struct Options {
  std::string host = "0.0.0.0";
  int port = 9090;
  int port_end = 9099;
  std::string key;
  std::string work_dir = ".";
  std::string tracker;  // empty: none
};

struct Session {
  int connection;
  int timeout_sec;  // 0: none
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "--host") options.host = value;
    if (name == "--port") options.port = std::stoi(value);
    if (name == "--port-end") options.port_end = std::stoi(value);
    if (name == "--key") options.key = value;
    if (name == "--work-dir") options.work_dir = value;
    if (name == "--tracker") options.tracker = value;
  }
  return options;
}

int listen_on(const Options& options, int* bound_port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  for (int port = options.port; port < options.port_end; ++port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, options.host.c_str(), &address.sin_addr);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) continue;
    if (listen(listener, 1) != 0) continue;
    *bound_port = port;
    std::cerr << "Bind to " << options.host << ":" << port << std::endl;
    return listener;
  }
  std::cerr << "no free port in the range" << std::endl;
  std::exit(1);
}

bool receive(int connection, void* into, size_t size) {
  return recv(connection, into, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

void send_all(int connection, const void* from, size_t size) {
  if (send(connection, from, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    std::cerr << "the client left during the handshake" << std::endl;
  }
}

std::optional<Session> shake_hands(int connection, const std::string& key) {
  int32_t code = 0, length = 0;
  if (!receive(connection, &code, 4) || code != kMagic) return std::nullopt;
  if (!receive(connection, &length, 4) || length < 1 || length > 4096) return std::nullopt;
  std::string name(length, '\0');
  if (!receive(connection, name.data(), length)) return std::nullopt;
  std::istringstream words(name);
  std::string client, option;
  words >> client >> option;
  if (client != "client:" + key) {
    send_all(connection, &kMismatch, 4);
    return std::nullopt;
  }
  const std::string server = "server:" + key;
  const int32_t server_length = static_cast<int32_t>(server.size());
  send_all(connection, &kMagic, 4);
  send_all(connection, &server_length, 4);
  send_all(connection, server.data(), server.size());
  int timeout_sec = 0;
  const std::string prefix = "-timeout=";
  if (option.rfind(prefix, 0) == 0) {
    const std::string digits = option.substr(prefix.size());
    if (digits.find_first_not_of("0123456789") != std::string::npos) std::abort();
    timeout_sec = std::stoi(digits);
  }
  return Session{connection, timeout_sec};
}

// The connection to a tracker, by which the server offers one session after the other. A lost one ends the server.
class Tracker {
 public:
  Tracker(const std::string& address, const std::string& key, int port) : key_(key), port_(port) {
    const size_t colon = address.rfind(':');
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &there.sin_addr);
    connection_ = socket(AF_INET, SOCK_STREAM, 0);
    int32_t magic = kTrackerMagic;
    if (connect(connection_, reinterpret_cast<sockaddr*>(&there), sizeof(there)) != 0) fail();
    send_all(connection_, &magic, 4);
    if (!receive(connection_, &magic, 4) || magic != kTrackerMagic) fail();
    ask("[5, {\"key\": \"server:" + key_ + "\", \"addr\": [null, \"" + std::to_string(port_) + "\"]}]");
  }

  std::string offer() {
    const std::string match_key = key_ + ":" + std::to_string(random_());
    ask("[3, \"" + key_ + "\", [" + std::to_string(port_) + ", \"" + match_key + "\"], null]");
    return match_key;
  }

 private:
  [[noreturn]] static void fail() {
    std::cerr << "the tracker does not answer" << std::endl;
    std::exit(1);
  }

  void ask(const std::string& message) {
    int32_t length = static_cast<int32_t>(message.size());
    send_all(connection_, &length, 4);
    send_all(connection_, message.data(), message.size());
    if (!receive(connection_, &length, 4) || length < 1 || length > 4096) fail();
    std::string answer(length, '\0');
    if (!receive(connection_, answer.data(), answer.size()) || answer != "0") fail();
  }

  std::string key_;
  int port_;
  int connection_ = -1;
  std::random_device random_;
};

void define_server_functions(const std::string& directory) {
  const auto path_of = [directory](const std::string& name) { return directory + "/" + name; };
  ffi::Function::SetGlobal("tvm.rpc.server.workpath", ffi::Function::FromTyped([path_of](const ffi::String& name) {
                             return ffi::String(path_of(name));
                           }));
  ffi::Function::SetGlobal("tvm.rpc.server.load_module", ffi::Function::FromTyped([path_of](const ffi::String& name) {
                             return ffi::Module::LoadFromFile(path_of(name));
                           }));
}

[[noreturn]] void serve(const Session& session, const std::string& work_dir) {
  const std::string directory = work_dir + "/.cache";
  std::filesystem::create_directories(directory);
  define_server_functions(std::filesystem::absolute(directory).string());
  try {
    (*ffi::Function::GetGlobal("rpc.ServerLoop"))(static_cast<int64_t>(session.connection));
  } catch (const std::exception& error) {
    std::cerr << "session ended: " << error.what() << std::endl;
  }
  std::filesystem::remove_all(directory);
  _exit(0);
}

void wait_for(pid_t child, int timeout_sec) {
  const auto started = std::chrono::steady_clock::now();
  int status = 0;
  while (waitpid(child, &status, timeout_sec == 0 ? 0 : WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - started >= std::chrono::seconds(timeout_sec)) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::cerr << "session finished, status " << status << std::endl;
}

void preload() {
  const char* named = std::getenv("TVM_RPC_PRELOAD");
  std::istringstream paths(named == nullptr ? "" : named);
  for (std::string path; std::getline(paths, path, ':');) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::cerr << dlerror() << std::endl;
      std::exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "server") != 0) {
    std::cerr << "usage: tvm_rpc server --host= --port= --port-end= --key= --work-dir=" << std::endl;
    return 1;
  }
  const Options options = parse(argc, argv);
  preload();
  int port = 0;
  const int listener = listen_on(options, &port);
  std::optional<Tracker> tracker;
  if (!options.tracker.empty()) tracker.emplace(options.tracker, options.key, port);
  std::string key = tracker ? tracker->offer() : options.key;
  while (true) {
    const int connection = accept(listener, nullptr, nullptr);
    if (connection < 0) continue;
    const std::optional<Session> session = shake_hands(connection, key);
    if (session) {
      const pid_t child = fork();
      if (child == 0) {
        close(listener);
        serve(*session, options.work_dir);
      }
      close(connection);
      wait_for(child, session->timeout_sec);
      if (tracker) key = tracker->offer();
    } else {
      close(connection);
    }
  }
}
