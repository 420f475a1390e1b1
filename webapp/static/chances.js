// What one forecast says of prices: the chance that one is touched, reached before another, or closed above; stops.
// The formulas and the numbers of cpbmodels/data/chances.py and extremes.py, which a test compares; the reasons are there.

const CHANCES = [98, 94, 88, 81, 73, 65, 57, 50, 42, 34, 25, 18, 13, 10, 7, 5, 2.5, 1].map((percent) => percent / 100);
const CHANCES_OF_BEFORE = Array.from({ length: 99 }, (_, i) => 1 - (i + 1) / 100);
const TINY = 1e-12; // least width, in log-return
const MAX_GROWTH = 10; // of the distance while the chance falls to a tenth
const TAIL = [1, 2, 3, 4, 5, 6]; // tenfold smaller chances beyond the last level
const MIN_CHANCE = 1e-8; // of a close beyond a price
const MAX_STOP = 300; // log-return of a stop
const MEDIAN = 9, LAST = 18; // places among the 19 quantiles
const LEVEL = 0.05; // of the first quantile, and between two

const clip = (value, low, high) => Math.min(Math.max(value, low), high);
const rising = (values) => values.map((_, i) => Math.max(...values.slice(0, i + 1)));

// The value at `at` of the line through (x, y), as numpy.interp has it.
function interpolated(at, x, y) {
  if (at < x[0]) return y[0];
  const last = x.length - 1;
  if (at >= x[last]) return y[last];
  let left = 0;
  while (left < last && x[left + 1] <= at) left += 1;
  return y[left] + (at - x[left]) * (y[left + 1] - y[left]) / (x[left + 1] - x[left]);
}

// `distance` [2][H][L] and `first` [3][H][19][19] (or null): a model's table; `close` [H][19]: the quantiles in prices.
// Without a table (null) only `above` can be asked.
export function chancesOf({ distance, first }, close, lastClose) {
  const steps = close.map((_, step) => step);
  const moves = close.map((levels) => levels.map((price) => Math.log(price / lastClose)));
  const widths = close.map((levels) => Math.max(Math.log(levels[17]) - Math.log(levels[1]), TINY));
  const chances = distance?.[0][0].length === CHANCES_OF_BEFORE.length ? CHANCES_OF_BEFORE : CHANCES;
  const logs = [1, ...chances, ...TAIL.map((n) => chances.at(-1) * 0.1 ** n)].map(Math.log);
  const tenthAt = chances.reduce((best, chance, i) => (Math.abs(chance - 0.1) < Math.abs(chances[best] - 0.1) ? i : best), 0);
  const nodes = distance?.map((side) => side.map((levels) => {
    const growth = clip(levels.at(-1) / Math.max(levels[tenthAt], TINY), 1, MAX_GROWTH);
    return [0, ...levels, ...TAIL.map((n) => levels.at(-1) * growth ** n)];
  }));
  const places = logs.map((_, i) => i);

  const touched = (side, at, step) => Math.exp(interpolated(at, nodes[side][step], logs));

  // The chance [H] that a price is touched by each step.
  function touch(price) {
    const move = Math.log(price / lastClose);
    return rising(steps.map((step) => (move === 0 ? 1 : touched(move > 0 ? 0 : 1, Math.abs(move) / widths[step], step))));
  }

  // The shares that reach up first, down first, both within one candle; and those that touch up, and down.
  function decided(up, down, step) {
    const size = first[0][step].length;
    const [[i, a], [j, b]] = [up, down].map((at, side) => {
      const place = interpolated(at, nodes[side][step].slice(0, size), places.slice(0, size));
      const low = Math.min(Math.floor(place), size - 2);
      return [low, place - low];
    });
    const [upFirst, downFirst, both] = first.map((grid) => (1 - a) * (1 - b) * grid[step][i][j] + a * (1 - b) * grid[step][i + 1][j]
      + (1 - a) * b * grid[step][i][j + 1] + a * b * grid[step][i + 1][j + 1]);
    const above = touched(0, up, step), below = touched(1, down, step);
    return [above * upFirst, below * downFirst, above * both, above, below];
  }

  // The chances [H][2] that the target, and that the stop, was reached first; null where they lie on one side.
  function reachedFirst(target, stop) {
    const goal = Math.log(target / lastClose), loss = Math.log(stop / lastClose);
    if (!(goal * loss < 0)) return null;
    let won = 0, lost = 0;
    return steps.map((step) => {
      const [upFirst, downFirst, both, above, below] = decided(Math.max(goal, loss) / widths[step], -Math.min(goal, loss) / widths[step], step);
      const [toGoal, toLoss] = goal > 0 ? [above, below] : [below, above];
      let losses = Math.min((goal > 0 ? downFirst : upFirst) + both, toLoss);
      const gains = Math.min(Math.max(goal > 0 ? upFirst : downFirst, toGoal - losses), toGoal);
      losses = Math.max(losses, toLoss - gains);
      won = Math.max(won, Math.min(gains, 1 - lost));
      lost = Math.max(lost, Math.min(losses, 1 - won));
      return [won, lost];
    });
  }

  // The chance [H] that the close of each step lies above a price.
  function above(price) {
    const move = Math.log(price / lastClose);
    return moves.map((levels) => {
      const left = clip(levels.filter((level) => level <= move).length - 1, 0, LAST - 1);
      const [start, end] = [levels[left], levels[left + 1]];
      const share = end <= move ? 1 : clip((move - start) / Math.max(end - start, TINY), 0, 1);
      const far = (sign, tenth, twentieth) => tail(...[move, levels[tenth], levels[twentieth]].map((at) => sign * (at - levels[MEDIAN])));
      if (move > levels[LAST]) return far(1, LAST - 1, LAST);
      if (move < levels[0]) return 1 - far(-1, 1, 0);
      return 1 - (LEVEL * (left + 1) + share * LEVEL);
    });
  }

  // The price [H] that is touched within each step with a chance; null where it is too far to be told.
  function stop(chance, side) {
    const which = side === "up" ? 0 : 1, falling = logs.map((log) => -log);
    const found = rising(steps.map((step) => interpolated(-Math.log(chance), falling, nodes[which][step]) * widths[step]));
    if (!found.every((move) => move <= MAX_STOP)) return null;
    return found.map((move) => lastClose * Math.exp(which ? -move : move));
  }

  return { touch, first: first && reachedFirst, above, stop };
}

function tail(distance, tenth, twentieth) {
  const outer = Math.max(twentieth, TINY);
  const growth = Math.log(outer / clip(tenth, TINY, outer));
  const power = Math.LN2 / clip(growth, TINY, Math.LN2);
  return Math.max(LEVEL * Math.exp(-power * Math.log(Math.max(distance / outer, 1))), MIN_CHANCE);
}

// The array of an answer's `values`: nested lists of its shape.
export function arrayOf({ dtype, shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
  const read = dtype === "float16" ? (i) => half(view.getUint16(2 * i, true)) : (i) => view.getFloat32(4 * i, true);
  let at = 0;
  const filled = ([length, ...inner]) => Array.from({ length }, () => (inner.length ? filled(inner) : read(at++)));
  return filled(shape);
}

// The number of a float16: no browser of before 2025 reads it by itself.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * fraction / 1024);
}
