// Runs one of the designs behind a file that another process maps as its register window.
//
//   fabric_sim DESIGN WINDOW_FILE
//
// The file holds what the window holds, word for word. Whoever writes a non-zero CTRL rings: every word that changed
// since is written into the design through its AXI4-Lite port, CTRL last; the design is clocked until it reads 0 again;
// what a run can change is read back through the port and put into the file, CTRL last. A design that never ends is
// clocked on until CTRL is written anew, as a real one would be. Prints "ready" once the window answers.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "designs.h"  // generated beside the models: the includes, and FOR_EACH_DESIGN(X) with X(name, model)

namespace {

constexpr size_t kWindowBytes = 0x4000;
constexpr size_t kWords = kWindowBytes / 4;
constexpr size_t kCtrl = 0, kId = 1, kGeometry = 2, kM = 3, kN = 4, kCycles = 7;
constexpr size_t kA = 0x1000 / 4, kC = 0x3000 / 4;
constexpr int kClocksPerLook = 256;
constexpr uint32_t kStart = 1;

// A design and its clock, driven through the AXI4-Lite port.
class Board {
 public:
  virtual ~Board() = default;
  virtual void Tick() = 0;
  virtual void Reset() = 0;
  virtual bool Write(uint32_t address, uint32_t value) = 0;
  virtual uint32_t Read(uint32_t address) = 0;
};

template <typename Model>
class ModelBoard : public Board {
 public:
  void Tick() override {
    model_.clk = 0;
    model_.eval();
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
    const bool is_okay = model_.bresp == 0;
    Tick();
    model_.bready = 0;
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
};

std::unique_ptr<Board> MakeBoard(const std::string& name) {
#define MAKE(design, model) \
  if (name == design) return std::make_unique<ModelBoard<model>>();
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
    for (size_t word = kId; word <= kCycles; ++word) window.Store(word, board.Read(word * 4));
    if (ctrl & kStart) {
      const size_t outputs = size_t{window.Load(kM)} * window.Load(kN);
      for (size_t word = kC; word < kC + outputs && word < kWords; ++word) window.Store(word, board.Read(word * 4));
    }
    window.Clear(kCtrl, ctrl);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fabric_sim DESIGN WINDOW_FILE\n");
    return 2;
  }
  const std::unique_ptr<Board> board = MakeBoard(argv[1]);
  if (!board) {
    std::fprintf(stderr, "fabric_sim: no design %s\n", argv[1]);
    return 2;
  }
  const int file = open(argv[2], O_RDWR);
  if (file < 0) {
    std::perror(argv[2]);
    return 1;
  }
  void* mapped = mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  Window window(static_cast<uint32_t*>(mapped));
  Serve(*board, window);
}
