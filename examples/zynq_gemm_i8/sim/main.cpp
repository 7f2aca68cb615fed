// Runs one of the designs behind a file that another process maps as its register window, beside one that stands for
// the memory that both share.
//
//   fabric_sim DESIGN WINDOW_FILE MEMORY_FILE MEMORY_ADDRESS
//
// The file holds what the window holds, word for word. Whoever writes a non-zero CTRL rings: every word that changed
// since is written into the design through its AXI4-Lite port, CTRL last; the design is clocked until it reads 0 again;
// what a run can change is read back through the port and put into the file, CTRL last. A design that never ends is
// clocked on until CTRL is written anew, as a real one would be. Prints "ready" once the window answers.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "designs.h"  // generated beside the models: the includes, and FOR_EACH_DESIGN(X) with X(name, model)

namespace {

constexpr size_t kWindowBytes = 0x4000;
constexpr size_t kWords = kWindowBytes / 4;
constexpr size_t kCtrl = 0, kId = 1, kGeometry = 2, kM = 3, kN = 4, kLastRegister = 10;
constexpr size_t kA = 0x1000 / 4, kC = 0x3000 / 4;
constexpr int kClocksPerLook = 256;
constexpr int kReadLatency = 24, kWriteLatency = 12;  // clocks, about those of a memory controller behind an HP port
constexpr uint8_t kOkay = 0, kDecodeError = 3;
constexpr uint32_t kStart = 1, kReset = 2;

// A design and its clock, driven through the AXI4-Lite port.
class Board {
 public:
  virtual ~Board() = default;
  virtual void Tick() = 0;
  virtual void Reset() = 0;
  virtual bool Write(uint32_t address, uint32_t value) = 0;
  virtual uint32_t Read(uint32_t address) = 0;
};

// Memory on the AXI4 port: one burst at a time, a word per clock once it flows.
class Memory {
 public:
  Memory(uint32_t* words, size_t size_bytes, uint32_t base) : words_(words), size_bytes_(size_bytes), base_(base) {}

  // What the port sees before a clock edge.
  template <typename Model>
  void Drive(Model& model) const {
    model.m_arready = phase_ == kIdle;
    model.m_awready = phase_ == kIdle && !model.m_arvalid;
    model.m_rvalid = phase_ == kReading && wait_ == 0;
    model.m_rresp = Has(address_) ? kOkay : kDecodeError;
    model.m_rdata = Has(address_) ? words_[(address_ - base_) / 4] : 0;
    model.m_wready = phase_ == kWriting;
    model.m_bvalid = phase_ == kAnswering && wait_ == 0;
    model.m_bresp = is_bad_ ? kDecodeError : kOkay;
  }

  // What the edge does, by the signals right before it.
  template <typename Model>
  void Step(const Model& model) {
    if (wait_ > 0) --wait_;
    if (model.m_arvalid && model.m_arready) {
      Begin(kReading, model.m_araddr, model.m_arlen, kReadLatency);
    } else if (model.m_awvalid && model.m_awready) {
      Begin(kWriting, model.m_awaddr, model.m_awlen, 0);
    } else if (model.m_rvalid && model.m_rready) {
      address_ += 4;
      if (beats_left_-- == 1) phase_ = kIdle;
    } else if (model.m_wvalid && model.m_wready) {
      if (Has(address_)) words_[(address_ - base_) / 4] = model.m_wdata;
      is_bad_ |= !Has(address_) || model.m_wlast != (beats_left_ == 1) || model.m_wstrb != 0xf;
      address_ += 4;
      if (beats_left_-- == 1) {
        phase_ = kAnswering;
        wait_ = kWriteLatency;
      }
    } else if (model.m_bvalid && model.m_bready) {
      phase_ = kIdle;
    }
  }

  // A master that was reset asks for nothing any more.
  void Forget() { phase_ = kIdle; }

 private:
  enum Phase { kIdle, kReading, kWriting, kAnswering };

  bool Has(uint32_t address) const { return address >= base_ && address - base_ < size_bytes_; }

  void Begin(Phase phase, uint32_t address, uint32_t length, int wait) {
    phase_ = phase;
    address_ = address;
    beats_left_ = static_cast<int>(length) + 1;
    wait_ = wait;
    is_bad_ = false;
  }

  uint32_t* words_;
  size_t size_bytes_;
  uint32_t base_;
  Phase phase_ = kIdle;
  uint32_t address_ = 0;
  int beats_left_ = 0;
  int wait_ = 0;
  bool is_bad_ = false;
};

template <typename Model>
class ModelBoard : public Board {
 public:
  explicit ModelBoard(const Memory& memory) : memory_(memory) {}

  void Tick() override {
    memory_.Drive(model_);
    model_.clk = 0;
    model_.eval();
    memory_.Drive(model_);  // an answer may depend on what the design just asked
    memory_.Step(model_);
    model_.clk = 1;
    model_.eval();
  }

  void Reset() override {
    model_.rst_n = 0;
    for (int i = 0; i < 4; ++i) Tick();
    model_.rst_n = 1;
    Tick();
  }

  bool Write(uint32_t address, uint32_t value) override {
    model_.awaddr = address;
    model_.wdata = value;
    model_.wstrb = 0xf;
    model_.awvalid = model_.wvalid = model_.bready = 1;
    model_.clk = 0;
    model_.eval();
    while (!(model_.awready && model_.wready)) Tick();
    Tick();
    model_.awvalid = model_.wvalid = 0;
    while (!model_.bvalid) Tick();
    const bool is_okay = model_.bresp == kOkay;
    Tick();
    model_.bready = 0;
    if (address == kCtrl * 4 && (value & kReset)) memory_.Forget();
    return is_okay;
  }

  uint32_t Read(uint32_t address) override {
    model_.araddr = address;
    model_.arvalid = model_.rready = 1;
    model_.clk = 0;
    model_.eval();
    while (!model_.arready) Tick();
    Tick();
    model_.arvalid = 0;
    while (!model_.rvalid) Tick();
    const uint32_t value = model_.rdata;
    Tick();
    model_.rready = 0;
    return value;
  }

 private:
  Model model_;
  Memory memory_;
};

std::unique_ptr<Board> MakeBoard(const std::string& name, const Memory& memory) {
#define MAKE(design, model) \
  if (name == design) return std::make_unique<ModelBoard<model>>(memory);
  FOR_EACH_DESIGN(MAKE)
#undef MAKE
  return nullptr;
}

// The window as the other process sees it.
class Window {
 public:
  explicit Window(uint32_t* words) : words_(words), known_(kWords, 0) {}

  uint32_t Load(size_t word) const { return __atomic_load_n(words_ + word, __ATOMIC_ACQUIRE); }

  void Store(size_t word, uint32_t value) {
    known_[word] = value;
    __atomic_store_n(words_ + word, value, __ATOMIC_RELEASE);
  }

  // Puts zero where `expected` still is: a word written meanwhile stays.
  void Clear(size_t word, uint32_t expected) {
    __atomic_compare_exchange_n(words_ + word, &expected, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }

  // Calls `write(word, value)` for each word, CTRL apart, that the other side changed.
  template <typename Function>
  void ForEachChange(Function write) {
    for (size_t word = 1; word < kWords; ++word) {
      const uint32_t value = Load(word);
      if (value == known_[word]) continue;
      known_[word] = value;
      write(word, value);
    }
  }

 private:
  uint32_t* words_;
  std::vector<uint32_t> known_;
};

void Rest(long nanoseconds) {
  timespec time{0, nanoseconds};
  nanosleep(&time, nullptr);
}

void Serve(Board& board, Window& window) {
  board.Reset();
  for (size_t word = 1; word < kWords; ++word) window.Store(word, 0);
  // RAMs come up with anything; the file says zero, so make it true.
  for (size_t word = kA; word < kWords; ++word) board.Write(word * 4, 0);
  window.Store(kId, board.Read(kId * 4));
  window.Store(kGeometry, board.Read(kGeometry * 4));
  window.Store(kCtrl, 0);
  std::puts("ready");
  std::fflush(stdout);
  int looks = 0;
  const pid_t parent = getppid();
  for (;;) {
    const uint32_t ctrl = window.Load(kCtrl);
    if (ctrl == 0) {
      Rest(++looks < 2000 ? 20'000 : 500'000);
      if (getppid() != parent) return;
      continue;
    }
    looks = 0;
    window.ForEachChange([&](size_t word, uint32_t value) { board.Write(word * 4, value); });
    board.Write(kCtrl * 4, ctrl);
    while (board.Read(kCtrl * 4) != 0 && window.Load(kCtrl) == ctrl && getppid() == parent) {
      for (int i = 0; i < kClocksPerLook; ++i) board.Tick();
    }
    if (window.Load(kCtrl) != ctrl) continue;  // written anew while it ran
    if (getppid() != parent) return;
    for (size_t word = kId; word <= kLastRegister; ++word) window.Store(word, board.Read(word * 4));
    if (ctrl & kStart) {
      const size_t outputs = size_t{window.Load(kM)} * window.Load(kN);
      for (size_t word = kC; word < kC + outputs && word < kWords; ++word) window.Store(word, board.Read(word * 4));
    }
    window.Clear(kCtrl, ctrl);
  }
}

// Maps a file that is there already; ends the program when that cannot be.
uint32_t* Map(const char* path, size_t* size_bytes) {
  const int file = open(path, O_RDWR);
  struct stat found {};
  if (file < 0 || fstat(file, &found) != 0) {
    std::perror(path);
    std::exit(1);
  }
  *size_bytes = static_cast<size_t>(found.st_size);
  void* mapped = mmap(nullptr, *size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    std::perror(path);
    std::exit(1);
  }
  close(file);
  return static_cast<uint32_t*>(mapped);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: fabric_sim DESIGN WINDOW_FILE MEMORY_FILE MEMORY_ADDRESS\n");
    return 2;
  }
  size_t window_bytes = 0, memory_bytes = 0;
  Window window(Map(argv[2], &window_bytes));
  uint32_t* words = Map(argv[3], &memory_bytes);
  if (window_bytes < kWindowBytes) {
    std::fprintf(stderr, "fabric_sim: %s is smaller than the window\n", argv[2]);
    return 2;
  }
  const Memory memory(words, memory_bytes, static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 0)));
  const std::unique_ptr<Board> board = MakeBoard(argv[1], memory);
  if (!board) {
    std::fprintf(stderr, "fabric_sim: no design %s\n", argv[1]);
    return 2;
  }
  Serve(*board, window);
}
