#include "workers.h"

#include <algorithm>

namespace hearth {
namespace {

// Cuts a call into tasks: runs of tokens of one cache row, times key-value heads, times parts of a
// head's groups where there are too many. Heads that are little work are one task, which fetches
// the next head while it works on one, unless that leaves less than `min_tasks`.
void plan(const AttentionCall& call, int64_t min_tasks, std::vector<AttentionTask>& tasks) {
  constexpr int64_t kMaxScores = 4096;  // of a task of many heads
  tasks.clear();
  const int64_t groups = std::min<int64_t>(call.num_groups, kMaxQueries);
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

}  // namespace

// A task is panels that follow each other: few enough tasks for weights to be prefetched.
void Workers::multiply(LinearCall call) {
  call.tiles = tiles(call);
  const int64_t panels = num_panels(call);
  const int64_t tasks = std::min(panels, num_threads_ * kTasksPerThread);
  pool.run(tasks, [&](int64_t task) {
    kernels.linear_panels(call, panels * task / tasks, panels * (task + 1) / tasks);
  });
}

// The call's rows as tiles, if the kernels want them.
const ActivationTile* Workers::tiles(const LinearCall& call) {
  if (kernels.fill_tiles == nullptr || call.num_rows < kernels.min_tile_rows ||
      !is_quantised(call.bits)) {
    return nullptr;
  }
  const auto* rows = static_cast<const ActivationGroup*>(call.rows);
  const int64_t count = num_tiles(call.num_rows);
  const auto size = static_cast<size_t>(count * call.num_groups);
  if (tiles_.size() < size) {
    tiles_.resize(size);
  }
  pool.run(count, [&](int64_t tile) {
    const int64_t first = tile * kTileRows;
    kernels.fill_tiles(rows + first * call.num_groups,
                       std::min<int64_t>(kTileRows, call.num_rows - first), call.num_groups,
                       tiles_.data() + tile * call.num_groups);
  });
  return tiles_.data();
}

void Workers::attend(const AttentionCall& call) {
  plan(call, num_threads_ * kTasksPerThread, tasks_);
  pool.run(static_cast<int64_t>(tasks_.size()),
           [&](int64_t index) { kernels.attend(call, tasks_[static_cast<size_t>(index)]); });
}

}  // namespace hearth
