#include "pool.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace hearth {
namespace {

constexpr int kSpins = 4000;  // about 50 microseconds
constexpr int kTaskBits = 32;
constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;

bool is_task(uint64_t ticket) { return (ticket & kTaskMask) < ticket >> kTaskBits; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

struct Pool::Threads {
  std::mutex mutex;  // for going to sleep and waking up
  std::condition_variable wake;
  std::vector<std::thread> threads;
};

Pool::Pool(int num_threads) : threads_(new Threads) {
  try {
    for (int i = 1; i < num_threads; ++i) {
      threads_->threads.emplace_back([this] { serve(); });
    }
  } catch (...) {  // some threads may have started
    end();
    throw;
  }
}

Pool::~Pool() { end(); }

void Pool::end() {
  {
    const std::scoped_lock lock(threads_->mutex);
    is_ending_ = true;
  }
  threads_->wake.notify_all();
  for (std::thread& thread : threads_->threads) {
    thread.join();
  }
  delete threads_;
}

void Pool::run(int64_t num_tasks, Function call, const void* context) {
  if (num_tasks == 1 || threads_->threads.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) {
      call(context, i);
    }
    return;
  }
  call_ = call;
  context_ = context;
  unfinished_.store(num_tasks, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(num_tasks) << kTaskBits);
  // Either the sleeper is counted here, or it sees the ticket before it sleeps: both are
  // sequentially consistent.
  if (num_sleeping_.load() > 0) {
    {
      const std::scoped_lock lock(threads_->mutex);
    }
    threads_->wake.notify_all();
  }
  work();
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

bool Pool::has_tasks() const { return is_task(ticket_.load()); }

void Pool::work() {
  while (has_tasks()) {  // looks first: the lower half must not run over
    const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (!is_task(ticket)) {
      return;
    }
    // A call does not end before this task has: call_ and context_ are the ticket's.
    call_(context_, static_cast<int64_t>(ticket & kTaskMask));
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

void Pool::serve() {
  while (!is_ending_.load()) {
    for (int spins = 0; spins < kSpins && !has_tasks(); ++spins) {
      pause();
    }
    if (!has_tasks()) {
      std::unique_lock lock(threads_->mutex);
      ++num_sleeping_;
      threads_->wake.wait(lock, [this] { return has_tasks() || is_ending_.load(); });
      --num_sleeping_;
    }
    work();
  }
}

}  // namespace hearth
