// Threads that share the tasks of one call at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace hearth {

// One thread at a time calls `run`, and works too. Between calls that follow closely, like those of
// a decode step, the other threads spin; a moment later they sleep.
//
// Threads take tasks from a ticket, which has the number of tasks in its upper half and the next
// task in its lower half. A thread that is late, even until the next call, takes a task of that
// call or none, so a call never waits for a thread that has no task.
class Pool {
 public:
  explicit Pool(int num_threads);  // counts the caller
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
  struct Threads;  // defined in pool.cpp, so that other units need no headers for threads

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
