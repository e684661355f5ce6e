// Threads that share the tasks of one call at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace hearth {

// `run` is called by one thread at a time, which works too. Between two calls that follow closely,
// as those of a decode step do, the others spin; a moment later they sleep.
//
// Tasks are taken from a ticket: the number of tasks in its upper half, the next one in its lower.
// A thread that comes late, even into the next call, takes a task of that call or none at all, so
// nobody waits for a thread that has nothing to do.
class Pool {
 public:
  explicit Pool(int num_threads);  // the caller included
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Calls task(0) … task(num_tasks - 1), in any order, and returns when all have returned.
  template <class Task>
  void run(int64_t num_tasks, const Task& task) {
    const Function call = [](const void* context, int64_t index) {
      (*static_cast<const Task*>(context))(index);
    };
    run(num_tasks, call, &task);
  }

 private:
  using Function = void (*)(const void* context, int64_t index);
  struct Threads;  // and what they sleep by: all units but one compile without their headers

  void run(int64_t num_tasks, Function call, const void* context);
  bool has_tasks() const;
  void work();
  void serve();
  void end();

  Function call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> unfinished_{0};

  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> is_ending_{false};
  Threads* const threads_;
};

}  // namespace hearth
