// One variant's kernels, and the threads that share each call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace hearth {

class Workers {
 public:
  Workers(const Kernels& kernels, int num_threads)
      : kernels(kernels), pool(num_threads), num_threads_(num_threads) {}

  void multiply(LinearCall call);
  // Multiplies products that do not depend on each other.
  void multiply(std::vector<LinearCall>& calls);
  // Multiplies products that may add to the same place, which they do in their order.
  void multiply_in_order(std::vector<LinearCall>& calls);
  void attend(const AttentionCall& call);
  // Writes rows of `size` floats in the form that weights of `bits` are multiplied by.
  void prepare(Bits bits, const float* x, int64_t size, int64_t num_rows, std::vector<char>& rows);

  // Calls work(0) … work(num_rows - 1), for work that is quick.
  template <class Work>
  void each_row(int64_t num_rows, const Work& work) {
    if (num_rows >= kMinRowsToShare) {
      const int64_t tasks = num_threads_ < num_rows ? num_threads_ * kTasksPerThread : num_rows;
      share(num_rows, tasks < num_rows ? tasks : num_rows, work);
      return;
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      work(row);
    }
  }

  const Kernels& kernels;
  Pool pool;

 private:
  struct alignas(kCacheLine) CacheLine {
    char bytes[kCacheLine];
  };

  // Fewer rows stay on the calling thread: waking threads would cost more than they save.
  static constexpr int64_t kMinRowsToShare = 4;
  // Enough tasks that the others need not wait for a thread that is held up.
  static constexpr int64_t kTasksPerThread = 8;

  int64_t wanted_tiles(const LinearCall& call) const;
  void fill_tiles(const LinearCall& call, int64_t tile, CacheLine* tiles) const;
  const void* tiles(const LinearCall& call);
  void set_tiles(std::vector<LinearCall>& calls);

  template <class Work>
  void share(int64_t num_rows, int64_t tasks, const Work& work) {
    pool.run(tasks, [&](int64_t task) {
      for (int64_t row = num_rows * task / tasks; row < num_rows * (task + 1) / tasks; ++row) {
        work(row);
      }
    });
  }

  const int64_t num_threads_;
  std::vector<CacheLine> tiles_;      // tiles of the current call; keeps its memory
  std::vector<AttentionTask> tasks_;  // like tiles_
};

}  // namespace hearth
