// The last two minutes of states, and what their differences say. Pure.

const WINDOW_S = 120;
const SHORTEST_S = 20; // of what a chart spans
const RECENT_S = 60;

/** States in the order they came. A server that restarted starts anew. */
export class History {
  states = [];

  push(state) {
    const last = this.states.at(-1);
    if (last && (state.at_s < last.at_s || state.totals.steps < last.totals.steps))
      this.states = [];
    this.states.push(state);
    const since_s = state.at_s - WINDOW_S;
    while (this.states.length > 2 && this.states[1].at_s < since_s) this.states.shift();
  }

  get latest() {
    return this.states.at(-1);
  }

  /** `[from, to]` of what there is to show, at most the window. */
  get range() {
    const to_s = this.latest.at_s;
    const known_s = Math.ceil(to_s - this.states[0].at_s);
    return [to_s - Math.min(WINDOW_S, Math.max(SHORTEST_S, known_s)), to_s];
  }

  /** `[at_s, value]` of each state. */
  levels(value) {
    return this.states.map((state) => [state.at_s, value(state)]);
  }

  /** `[at_s, per second]` between each state and the one before it. */
  rates(total) {
    return this.#pairs((old, state) => (total(state) - total(old)) / (state.at_s - old.at_s));
  }

  /** `[at_s, mean in seconds]` of a latency between each two states, where there was any. */
  means(name) {
    const means = this.#pairs((old, state) => {
      const num = observations(state.latencies[name]) - observations(old.latencies[name]);
      return num > 0 ? (state.latencies[name].sum_s - old.latencies[name].sum_s) / num : null;
    });
    return means.filter(([, mean]) => mean !== null);
  }

  /** Quantiles in seconds of a latency over the last minute; null where there was none. */
  quantiles(name, ranks) {
    const before = new Map(this.#minuteAgo.latencies[name].buckets);
    const buckets = this.latest.latencies[name].buckets.map(([bound, n]) => [
      bound,
      n - (before.get(bound) ?? 0),
    ]);
    return ranks.map((rank) => quantile(buckets, rank));
  }

  /** What a total grew by over the last minute. */
  gained(total) {
    return total(this.latest) - total(this.#minuteAgo);
  }

  get #minuteAgo() {
    return this.states.find((state) => state.at_s >= this.latest.at_s - RECENT_S);
  }

  #pairs(value) {
    const pairs = [];
    for (let i = 1; i < this.states.length; i++) {
      pairs.push([this.states[i].at_s, value(this.states[i - 1], this.states[i])]);
    }
    return pairs;
  }
}

function observations(histogram) {
  return histogram.buckets.at(-1)?.[1] ?? 0;
}

/** Of cumulative buckets `[upper bound or null, number]`, straight within a bucket as PromQL's
 * histogram_quantile has it: the last bound where the rank lies beyond it. */
export function quantile(buckets, rank) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const wanted = rank * total;
  let lower = 0;
  let below = 0;
  for (const [bound, number] of buckets) {
    if (number >= wanted) {
      return bound === null
        ? lower
        : lower + ((bound - lower) * (wanted - below)) / (number - below || 1);
    }
    [lower, below] = [bound, number];
  }
  return lower;
}
