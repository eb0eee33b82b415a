// What all parts of the page use: elements, numbers as text, colours. Text becomes text nodes only, never markup.
const SVG = 'http://www.w3.org/2000/svg';

function el(tag, attributes, ...children) {
  const svg = ['svg', 'rect', 'line', 'text', 'g', 'title'].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'colour') node.style.background = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const known = (value) => typeof value === 'number' && isFinite(value);

function digits(value, count) {
  if (!known(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(Math.max(0, count - 1)).replace(/\.?0+e/, 'e');
  return value.toFixed(Math.min(12, Math.max(0, count - 1 - Math.floor(Math.log10(size))))).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
}

/// 12.3 k, 4.56 M, 1.2 B
function count(value) {
  if (!known(value)) return '–';
  for (const [size, letter] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e4, 'k']])
    if (Math.abs(value) >= size) return digits(value / (letter === 'k' ? 1e3 : size), 3) + ' ' + letter;
  return Number.isInteger(value) ? String(value) : digits(value, 3);
}
const whole = (value) => known(value) ? Math.round(value).toLocaleString('en-US') : '–';
const percent = (value, places = 1) => known(value) ? (100 * value).toFixed(places) + ' %' : '–';

function bytes(value) {
  if (!known(value)) return '–';
  for (const [size, unit] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']])
    if (value >= size) return digits(value / size, 3) + ' ' + unit;
  return value + ' B';
}

/// Seconds of something short: 12 ms, 0.25 s
function seconds(value) {
  if (!known(value)) return '–';
  if (value >= 100) return duration(value);
  if (value === 0) return '0 s';
  return value < 0.1 ? (value < 1e-4 ? digits(value * 1e6, 3) + ' µs' : digits(value * 1e3, 3) + ' ms') : digits(value, 3) + ' s';
}

/// 4m 12s, 3h 5m, 2d 6h
function duration(value) {
  if (!known(value)) return '–';
  const s = Math.round(value);
  if (s < 60) return (value < 10 ? digits(value, 2) : s) + ' s';
  if (s < 3600) return Math.floor(s / 60) + 'm ' + (s % 60) + 's';
  if (s < 86400) return Math.floor(s / 3600) + 'h ' + Math.floor(s % 3600 / 60) + 'm';
  return Math.floor(s / 86400) + 'd ' + Math.floor(s % 86400 / 3600) + 'h';
}

const pad = (n) => String(n).padStart(2, '0');
function clockTime(unix) {
  if (!known(unix) || unix <= 0) return '–';
  const d = new Date(unix * 1000);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

let styles = null;
/// The value of a colour of page.css in the theme that is on.
function colour(name) {
  styles = styles || getComputedStyle(document.documentElement);
  return styles.getPropertyValue('--' + name).trim();
}
const RUN_COLOURS = ['blue', 'orange', 'green', 'purple', 'red', 'teal', 'pink', 'amber'];
const runColour = (index) => RUN_COLOURS[index % RUN_COLOURS.length];

/// How events are drawn: colour, sign and word.
const MARKS = {
  start: ['green', '▲', 'start or resume'], failure: ['red', '✕', 'failure'], restart: ['amber', '↻', 'restart'],
  checkpoint: ['grey', '▪', 'checkpoint'], warning: ['amber', '!', 'warning'], node: ['red', '◆', 'node lost'],
  skipped: ['amber', '∅', 'step skipped'], change: ['purple', '●', 'change of the spec'], stop: ['amber', '■', 'stop requested'],
  end: ['grey', '■', 'end'],
};

/// Most important first.
const SIGN_ORDER = ['failure', 'node', 'warning', 'restart', 'skipped', 'change', 'start', 'stop', 'end', 'checkpoint'];

const store = {
  get(name) { try { return localStorage.getItem('trainctl.' + name); } catch (error) { return null; } },
  set(name, value) { try { localStorage.setItem('trainctl.' + name, value); } catch (error) { /* a file without storage */ } },
};

/// Ticks at round numbers, about `most` of them.
function ticks(lo, hi, most, integers) {
  if (!(hi > lo)) return [lo];
  const rough = (hi - lo) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  if (integers) step = Math.max(1, Math.round(step));
  const list = [];
  for (let t = Math.ceil(lo / step - 1e-9) * step; t <= hi + step * 1e-9; t += step) list.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return list;
}

function timeTicks(lo, hi, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];
  const rough = (hi - lo) / Math.max(1, most);
  if (rough < 1) return ticks(lo, hi, most, false);
  const step = steps.find((s) => s >= rough) || 86400 * 365;
  const list = [];
  for (let t = Math.ceil(lo / step) * step; t <= hi; t += step) list.push(t);
  return list;
}
const shortTime = (s) => s === 0 ? '0' : s < 60 ? digits(s, 3) + 's' : s < 3600 ? digits(s / 60, 3) + 'm' : s < 86400 ? digits(s / 3600, 3) + 'h' : digits(s / 86400, 3) + 'd';
