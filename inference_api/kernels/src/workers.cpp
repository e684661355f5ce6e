#include "workers.h"

#include <algorithm>

#include "grow.h"

namespace hearth {
namespace {

// Cuts a call into tasks: runs of tokens of one user row, times key-value heads. A head's groups
// are cut into parts if there are too many, or too few heads for all threads. Heads with little
// work form one task, which fetches the next head meanwhile, unless fewer than `min_tasks` would be
// left.
void plan(const AttentionCall& call, int64_t num_threads, int64_t min_tasks,
          std::vector<AttentionTask>& tasks) {
  constexpr int64_t kMaxScores = 4096;  // scores of a task with several heads
  tasks.clear();
  const int64_t threads_per_head =
      std::max<int64_t>(num_threads / (call.num_tokens * call.num_kv_heads), 1);
  const int64_t groups =
      std::min<int64_t>((call.num_groups + threads_per_head - 1) / threads_per_head, kMaxQueries);
  const int64_t max_tokens = kMaxQueries / groups;
  const int64_t fair_share = call.num_tokens * call.num_kv_heads / min_tasks;
  int64_t first = 0;
  while (first < call.num_tokens) {
    int64_t end = first + 1;
    while (end < call.num_tokens && end - first < max_tokens &&
           call.rows[end] == call.rows[first]) {
      ++end;
    }
    const int64_t head_scores = (end - first) * groups * call.lengths[end - 1];
    const int64_t most = std::max<int64_t>(std::min(fair_share, kMaxScores / head_scores), 1);
    for (int64_t head = 0; head < call.num_kv_heads; head += most) {
      const int64_t heads = std::min(most, call.num_kv_heads - head);
      for (int64_t group = 0; group < call.num_groups; group += groups) {
        const int64_t count = std::min(groups, call.num_groups - group);
        tasks.push_back({first, end - first, head, heads, group, count});
      }
    }
    first = end;
  }
}

// Returns the cache lines of a row of tiles.
int64_t row_lines(const LinearCall& call) {
  return call.num_groups * tile_bytes(call.bits) / kCacheLine;
}

}  // namespace

// A task has consecutive panels. Tasks are few enough for weights to be prefetched.
void Workers::multiply(LinearCall call) {
  call.tiles = tiles(call);
  const int64_t panels = num_panels(call);
  const int64_t tasks = std::min(panels, num_threads_ * kTasksPerThread);
  pool.run(tasks, [&](int64_t task) {
    kernels.linear_panels(call, panels * task / tasks, panels * (task + 1) / tasks);
  });
}

// A task has consecutive panels of consecutive products, so a panel is read once for all its rows.
void Workers::multiply(std::vector<LinearCall>& calls) {
  if (calls.empty()) {
    return;
  }
  set_tiles(calls);
  int64_t total = 0;
  for (const LinearCall& call : calls) {
    total += num_panels(call);
  }
  const int64_t tasks = std::min(total, num_threads_ * kTasksPerThread);
  pool.run(tasks, [&](int64_t task) {
    int64_t first = total * task / tasks;
    int64_t end = total * (task + 1) / tasks;
    for (const LinearCall& call : calls) {
      const int64_t panels = num_panels(call);
      if (first < panels && end > 0) {
        kernels.linear_panels(call, std::max<int64_t>(first, 0), std::min(end, panels));
      }
      first -= panels;
      end -= panels;
    }
  });
}

// A task has the same panels of all products, so no other task writes to the same place.
void Workers::multiply_in_order(std::vector<LinearCall>& calls) {
  if (calls.empty()) {
    return;
  }
  set_tiles(calls);
  const int64_t panels = num_panels(calls[0]);
  const int64_t tasks = std::min(panels, num_threads_ * kTasksPerThread);
  pool.run(tasks, [&](int64_t task) {
    for (const LinearCall& call : calls) {
      kernels.linear_panels(call, panels * task / tasks, panels * (task + 1) / tasks);
    }
  });
}

// Returns the number of rows of tiles that the kernels require for a call; 0 if they use its rows.
int64_t Workers::wanted_tiles(const LinearCall& call) const {
  const bool is_wanted =
      kernels.fill_tiles != nullptr && call.num_rows >= kernels.min_tile_rows(call.bits);
  return is_wanted ? num_tiles(call.num_rows) : 0;
}

void Workers::fill_tiles(const LinearCall& call, int64_t tile, CacheLine* tiles) const {
  const int64_t first = tile * kTileRows;
  kernels.fill_tiles(
      call.bits,
      static_cast<const char*>(call.rows) + first * call.num_groups * group_bytes(call.bits),
      std::min<int64_t>(kTileRows, call.num_rows - first), call.num_groups,
      tiles + tile * row_lines(call));
}

const void* Workers::tiles(const LinearCall& call) {
  const int64_t count = wanted_tiles(call);
  if (count == 0) {
    return nullptr;
  }
  grow(tiles_, count * row_lines(call));
  pool.run(count, [&](int64_t tile) { fill_tiles(call, tile, tiles_.data()); });
  return tiles_.data();
}

void Workers::set_tiles(std::vector<LinearCall>& calls) {
  int64_t size = 0;
  for (const LinearCall& call : calls) {
    size += wanted_tiles(call) * row_lines(call);
  }
  if (size == 0) {
    return;
  }
  grow(tiles_, size);
  CacheLine* tiles = tiles_.data();
  for (LinearCall& call : calls) {
    const int64_t count = wanted_tiles(call);
    call.tiles = count == 0 ? nullptr : tiles;
    pool.run(count, [&](int64_t tile) { fill_tiles(call, tile, tiles); });
    tiles += count * row_lines(call);
  }
}

void Workers::prepare(Bits bits, const float* x, int64_t size, int64_t num_rows,
                      std::vector<char>& rows) {
  const int64_t num_groups = size / kGroup;
  const int64_t row_bytes = num_groups * group_bytes(bits);
  grow(rows, num_rows * row_bytes);
  each_row(num_rows, [&](int64_t row) {
    kernels.prepare_row(bits, x + row * size, num_groups, rows.data() + row * row_bytes);
  });
}

void Workers::attend(const AttentionCall& call) {
  plan(call, num_threads_, num_threads_ * kTasksPerThread, tasks_);
  pool.run(static_cast<int64_t>(tasks_.size()),
           [&](int64_t index) { kernels.attend(call, tasks_[static_cast<size_t>(index)]); });
}

}  // namespace hearth
