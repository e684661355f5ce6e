// Repeats a task while somebody looks: never in a hidden tab, and less often after failures.

const MAX_PERIOD_MS = 10_000;

/** Runs `task` at once and then every `periodMs`; `onFailure` gets what it throws. Never ends. */
export async function poll(task, periodMs, onFailure) {
  let waitMs = periodMs;
  for (;;) {
    await untilVisible();
    try {
      await task();
      waitMs = periodMs;
    } catch (error) {
      onFailure(error);
      waitMs = Math.min(2 * waitMs, MAX_PERIOD_MS);
    }
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
}

function untilVisible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}
