// Line and area charts on a canvas. All charts share one horizontal axis, its zoom and its cursor.
const view = { axis: 'step', lo: null, hi: null, cursor: null, smooth: false, log: false, marks: true };
const charts = [];

const axisFormat = (value) => view.axis === 'time' ? shortTime(value) : count(value);
const axisWords = (value) => view.axis === 'time' ? duration(value) + ' after the start' : view.axis === 'tokens' ? count(value) + ' tokens' : 'step ' + whole(value);

/// The column of a table of curves that is the horizontal axis.
const axisColumn = (columns) => columns[view.axis === 'time' ? 't' : view.axis] || null;

/// A mean over neighbours on both sides, fewer of them towards the ends, where the curve keeps its first and last
/// value; gaps stay gaps.
function smoothed(values) {
  const most = Math.min(20, Math.max(2, Math.round(values.length / 24)));
  return values.map((value, i) => {
    if (!known(value)) return null;
    const half = Math.min(most, i, values.length - 1 - i), near = values.slice(i - half, i + half + 1).filter(known);
    return near.reduce((sum, v) => sum + v, 0) / near.length;
  });
}

function nearest(xs, x) {
  let lo = 0, hi = xs.length - 1;
  if (hi < 0) return -1;
  while (hi - lo > 1) {
    const middle = (lo + hi) >> 1;
    if (xs[middle] < x) lo = middle; else hi = middle;
  }
  return Math.abs(xs[lo] - x) <= Math.abs(xs[hi] - x) ? lo : hi;
}

/// options: title, format, and series(): [{name, run, colour, table, y, dots, dash, area}], where table has the
/// columns of the axes; zero: the vertical axis begins at 0; clip: rare peaks do not set its height; log: the
/// switch for a logarithmic axis applies. plain: never smoothed. stepless: its points are no steps.
class Chart {
  constructor(options) {
    this.options = options;
    this.now = el('span', { class: 'now' });
    this.legend = el('span', { class: 'legend' });
    this.base = el('canvas', { 'aria-hidden': 'true' });
    this.over = el('canvas', { 'aria-hidden': 'true' });
    this.plot = el('div', { class: 'plot', tabindex: '0', role: 'img' }, this.base, this.over);
    this.tip = null;
    this.node = el('figure', { class: 'card' + (options.wide ? ' wide' : '') },
      el('figcaption', {}, el('h3', {}, options.title), this.legend, this.now), this.plot);
    const on = (name, act, more) => this.plot.addEventListener(name, act, more);
    on('pointermove', (event) => this.point(event));
    on('pointerleave', (event) => { if (event.pointerType === 'mouse') setCursor(null, null); });
    on('pointerdown', (event) => { this.drag = event.pointerType === 'mouse' ? this.atPixel(event.offsetX) : null; this.point(event); });
    on('pointerup', (event) => this.endDrag(event));
    on('dblclick', () => zoom(null, null));
    on('keydown', (event) => this.key(event));
    on('blur', () => setCursor(null, null));
    charts.push(this);
  }

  load() {
    this.series = this.options.series().map((s) => {
      const x = axisColumn(s.table);
      if (!x) return null;
      const kept = s.y.map((y, i) => i).filter((i) => known(x[i]));
      const y = kept.map((i) => s.y[i]);
      return { ...s, x: kept.map((i) => x[i]), y, soft: s.dots || s.plain || y.length < 30 ? null : smoothed(y), steps: kept.map((i) => s.table.step[i]) };
    }).filter((s) => s && s.x.length);
    const names = new Map();
    for (const s of this.series) names.set(s.name, s);
    this.legend.replaceChildren(...(names.size > 1 || this.options.key ? [...names.values()].map((s) =>
      el('span', { class: 'key' }, el('span', { class: 'swatch', colour: colour(s.colour) }), s.name)) : []));
  }

  extent() {
    let lo = Infinity, hi = -Infinity;
    for (const chart of charts) for (const s of chart.series || []) {
      lo = Math.min(lo, s.x[0]);
      hi = Math.max(hi, s.x[s.x.length - 1]);
    }
    if (!(hi >= lo)) return [0, 1];
    if (view.axis !== 'step') lo = Math.min(lo, 0);
    return [view.lo ?? lo, view.hi ?? (hi > lo ? hi : lo + 1)];
  }

  /// Where the stacked areas of a run begin and end at each point.
  stack() {
    const areas = this.series.filter((s) => s.area);
    if (!areas.length) return;
    const base = areas[0].x.map(() => 0);
    for (const s of areas) {
      s.low = base.slice();
      (view.smooth && s.soft || s.y).forEach((y, i) => { base[i] += known(y) ? Math.max(0, y) : 0; });
      s.high = base.slice();
    }
  }

  height() {
    let lo = Infinity, hi = -Infinity;
    const all = [];
    for (const s of this.series) {
      const values = s.area ? s.high : s.y;
      for (let i = 0; i < values.length; ++i) {
        if (!known(values[i]) || s.x[i] < this.x0 || s.x[i] > this.x1 || (this.log && values[i] <= 0)) continue;
        lo = Math.min(lo, values[i]);
        hi = Math.max(hi, values[i]);
        all.push(values[i]);
      }
    }
    if (!all.length) return [0, 1];
    if (this.options.clip && all.length > 20) {
      all.sort((a, b) => a - b);
      hi = Math.min(hi, all[Math.floor(all.length * 0.985)] * 1.4);
    }
    if (this.options.zero) lo = 0;
    if (this.log) return [lo / 1.05, hi * 1.05];
    const room = (hi - lo || Math.abs(hi) || 1) * 0.06;
    return [this.options.zero ? 0 : lo - room, hi + room];
  }

  draw() {
    const box = this.plot.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
    if (box.width < 20) return;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(box.width * scale);
      canvas.height = Math.round(box.height * scale);
      canvas.getContext('2d').setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.width = box.width, this.tall = box.height;
    this.log = this.options.log && view.log;
    [this.x0, this.x1] = this.extent();
    this.stack();
    [this.y0, this.y1] = this.height();
    this.frame = { left: 52, right: 10, top: 14, bottom: 22 };
    const c = this.base.getContext('2d');
    c.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif';
    this.axes(c);
    c.save();
    c.beginPath();
    c.rect(this.frame.left, 0, this.width - this.frame.left - this.frame.right, this.tall - this.frame.bottom + 1);
    c.clip();
    for (const s of this.series) s.area ? this.area(c, s) : this.line(c, s);
    if (view.marks) this.markLines(c);
    c.restore();
    if (view.marks) this.markSigns(c);
    this.label();
    this.cursor();
  }

  px(x) { return this.frame.left + (x - this.x0) / (this.x1 - this.x0) * (this.width - this.frame.left - this.frame.right); }
  py(y) {
    const share = this.log ? Math.log(y / this.y0) / Math.log(this.y1 / this.y0) : (y - this.y0) / (this.y1 - this.y0);
    return this.tall - this.frame.bottom - share * (this.tall - this.frame.top - this.frame.bottom);
  }
  atPixel(pixel) { return this.x0 + (pixel - this.frame.left) / (this.width - this.frame.left - this.frame.right) * (this.x1 - this.x0); }

  axes(c) {
    const right = this.width - this.frame.right, bottom = this.tall - this.frame.bottom;
    c.clearRect(0, 0, this.width, this.tall);
    c.lineWidth = 1;
    c.textBaseline = 'middle';
    c.textAlign = 'right';
    let list = this.log ? [] : ticks(this.y0, this.y1, Math.max(2, Math.floor((bottom - this.frame.top) / 38)), false);
    if (this.log) {
      for (let p = 10 ** Math.floor(Math.log10(this.y0)); p <= this.y1; p *= 10)
        for (const m of [1, 2, 5]) if (p * m >= this.y0 && p * m <= this.y1) list.push(p * m);
      if (list.length < 2) list = ticks(this.y0, this.y1, 4, false);
    }
    for (const y of list) {
      const at = Math.round(this.py(y)) + 0.5;
      c.strokeStyle = colour('grid');
      c.beginPath(); c.moveTo(this.frame.left, at); c.lineTo(right, at); c.stroke();
      c.fillStyle = colour('muted');
      c.fillText(this.options.format(y), this.frame.left - 6, at);
    }
    c.textBaseline = 'top';
    c.textAlign = 'center';
    const most = Math.max(2, Math.floor((right - this.frame.left) / 76));
    const xs = view.axis === 'time' ? timeTicks(this.x0, this.x1, most) : ticks(this.x0, this.x1, most, true);
    for (const x of xs) {
      const at = this.px(x), text = axisFormat(x), half = c.measureText(text).width / 2;
      c.fillStyle = colour('muted');
      c.fillText(text, Math.min(Math.max(at, half), this.width - half), bottom + 6);
    }
    c.strokeStyle = colour('line');
    c.beginPath(); c.moveTo(this.frame.left, bottom + 0.5); c.lineTo(right, bottom + 0.5); c.stroke();
  }

  path(c, s, values) {
    let drawing = false;
    c.beginPath();
    for (let i = 0; i < values.length; ++i) {
      const y = values[i];
      if (!known(y) || (this.log && y <= 0)) { drawing = drawing && s.bridge; continue; }
      const px = this.px(s.x[i]), py = this.py(y);
      drawing ? c.lineTo(px, py) : c.moveTo(px, py);
      drawing = true;
    }
    c.stroke();
  }

  line(c, s) {
    c.strokeStyle = c.fillStyle = colour(s.colour);
    c.lineJoin = 'round';
    c.setLineDash(s.dash || []);
    const soft = view.smooth && s.soft;
    c.lineWidth = soft ? 1 : 1.6;
    c.globalAlpha = soft ? 0.28 : 1;
    this.path(c, s, s.y);
    c.globalAlpha = 1;
    c.setLineDash([]);
    if (soft) { c.lineWidth = 2; this.path(c, s, s.soft); }
    if (s.dots || s.y.length === 1)
      s.y.forEach((y, i) => {
        if (!known(y) || (this.log && y <= 0)) return;
        c.beginPath(); c.arc(this.px(s.x[i]), this.py(y), s.y.length > 80 ? 1.5 : 2.8, 0, 7); c.fill();
      });
  }

  area(c, s) {
    c.fillStyle = colour(s.colour);
    c.beginPath();
    s.x.forEach((x, i) => { c.lineTo(this.px(x), this.py(s.high[i])); });
    for (let i = s.x.length - 1; i >= 0; --i) c.lineTo(this.px(s.x[i]), this.py(s.low[i]));
    c.fill();
  }

  markLines(c) {
    const bottom = this.tall - this.frame.bottom;
    for (const mark of marksInView()) {
      const at = Math.round(this.px(mark.x)) + 0.5;
      c.strokeStyle = colour(MARKS[mark.mark][0]);
      c.lineWidth = 1;
      c.globalAlpha = mark.mark === 'checkpoint' ? 1 : 0.75;
      c.setLineDash(['failure', 'node', 'checkpoint'].includes(mark.mark) ? [] : [3, 3]);
      c.beginPath(); c.moveTo(at, mark.mark === 'checkpoint' ? bottom - 5 : 12); c.lineTo(at, bottom); c.stroke();
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
  }

  /// Signs that would cover each other: the more important one is shown.
  markSigns(c) {
    const taken = [];
    c.textAlign = 'center';
    c.textBaseline = 'top';
    for (const mark of [...marksInView()].sort((a, b) => SIGN_ORDER.indexOf(a.mark) - SIGN_ORDER.indexOf(b.mark))) {
      const at = Math.min(this.px(mark.x), this.width - 5);
      if (mark.mark === 'checkpoint' || at < this.frame.left - 1 || mark.x > this.x1 || taken.some((x) => Math.abs(x - at) < 10)) continue;
      taken.push(at);
      c.fillStyle = colour(MARKS[mark.mark][0]);
      c.fillText(MARKS[mark.mark][1], at, 0);
    }
    // Numbers that no axis can show.
    for (const odd of oddInView(this.options.odd)) {
      if (odd.x < this.x0 || odd.x > this.x1) continue;
      c.fillStyle = colour('red');
      c.fillText('▼', this.px(odd.x), 0);
    }
  }

  /// What a screen reader says.
  label() {
    const parts = this.series.filter((s) => !s.area).map((s) => {
      const values = s.y.filter(known);
      if (!values.length) return '';
      return `${s.name}: from ${this.options.format(values[0])} to ${this.options.format(values[values.length - 1])}, lowest ${this.options.format(Math.min(...values))}`;
    });
    this.plot.setAttribute('aria-label', `${this.options.title}, by ${view.axis}. ${parts.filter(Boolean).join('; ')}. Arrow keys move the cursor.`);
  }

  /// The points at the cursor: [[series, index], ...]
  atCursor(x) {
    const seen = [];
    for (const s of this.series) {
      const i = nearest(s.x, x);
      if (i >= 0 && (known(s.y[i]) || !s.dots)) seen.push([s, i]);
    }
    return seen;
  }

  cursor() {
    const c = this.over.getContext('2d');
    c.clearRect(0, 0, this.width, this.tall);
    if (this.tip) { this.tip.remove(); this.tip = null; }
    const at = view.cursor;
    if (!at || at.x < this.x0 || at.x > this.x1) { this.now.textContent = this.latest(); return; }
    const px = this.px(at.x), bottom = this.tall - this.frame.bottom;
    c.strokeStyle = colour('muted');
    c.beginPath(); c.moveTo(px, this.frame.top); c.lineTo(px, bottom); c.stroke();
    if (at.from !== undefined && at.chart === this && Math.abs(this.px(at.from) - px) > 4) {
      c.fillStyle = colour('blue');
      c.globalAlpha = 0.15;
      c.fillRect(Math.min(px, this.px(at.from)), this.frame.top, Math.abs(px - this.px(at.from)), bottom - this.frame.top);
      c.globalAlpha = 1;
    }
    const seen = this.atCursor(at.x);
    for (const [s, i] of seen) {
      const y = s.area ? s.high[i] : s.y[i];
      if (!known(y)) continue;
      c.fillStyle = colour(s.colour);
      c.strokeStyle = colour('card');
      c.beginPath(); c.arc(this.px(s.x[i]), this.py(Math.min(y, this.y1)), 3.5, 0, 7); c.fill(); c.stroke();
    }
    this.now.textContent = '';
    if (at.chart === this) this.showTip(px, seen);
  }

  latest() {
    const s = this.series.find((one) => !one.area);
    if (!s || this.options.stepless || this.series.some((one) => one.run !== s.run)) return '';
    for (let i = s.y.length - 1; i >= 0; --i) if (known(s.y[i])) return `${this.options.format(s.y[i])} at step ${whole(s.steps[i])}`;
    return '';
  }

  showTip(px, seen) {
    const rows = seen.map(([s, i]) => el('div', {}, el('span', { class: 'swatch', colour: colour(s.colour) }), s.name,
      el('span', { class: 'of' }, known(s.y[i]) ? (this.options.exact || this.options.format)(s.y[i]) : 'not a number')));
    const first = seen[0];
    const head = first && this.options.stepless ? axisWords(first[0].x[first[1]]) : first ? 'Step ' + whole(first[0].steps[first[1]]) + (view.axis === 'step' ? '' : ' · ' + axisWords(first[0].x[first[1]])) : '';
    if (this.series.some((s) => s.area) && first)
      rows.unshift(el('div', {}, 'all together', el('span', { class: 'of' }, seconds(seen.reduce((sum, [s, i]) => sum + (s.y[i] || 0), 0)))));
    const near = marksInView().filter((m) => Math.abs(this.px(m.x) - px) <= 5).slice(0, 6).map((m) =>
      el('div', {}, MARKS[m.mark][1] + ' ' + m.words));
    const odd = oddInView(this.options.odd).filter((o) => Math.abs(this.px(o.x) - px) <= 5).slice(0, 3).map((o) =>
      el('div', {}, `▼ ${o.what} is ${o.kind} in step ${whole(o.step)}`));
    this.tip = el('div', { class: 'tip' }, el('b', {}, head), rows, near, odd);
    this.plot.append(this.tip);
    const wide = this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, Math.min(px + 12 + wide > this.width ? px - 12 - wide : px + 12, this.width - wide)) + 'px';
    this.tip.style.top = '18px';
  }

  point(event) {
    const x = Math.min(this.x1, Math.max(this.x0, this.atPixel(event.offsetX)));
    const seen = this.atCursor(x)[0];
    setCursor(this, this.drag !== null && this.drag !== undefined || !seen ? x : seen[0].x[seen[1]], this.drag ?? undefined);
  }
  endDrag(event) {
    const from = this.drag, to = this.atPixel(event.offsetX);
    this.drag = null;
    if (from !== null && from !== undefined && Math.abs(this.px(from) - this.px(to)) > 12) zoom(Math.min(from, to), Math.max(from, to));
  }
  key(event) {
    const s = this.series[0], move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === 'Escape') return zoom(null, null);
    if (!s || move === undefined) return;
    event.preventDefault();
    const from = view.cursor ? nearest(s.x, view.cursor.x) : move > 0 ? -1 : s.x.length;
    setCursor(this, s.x[Math.min(s.x.length - 1, Math.max(0, from + move))]);
  }
}

function setCursor(chart, x, from) {
  view.cursor = x === null ? null : { chart, x, from };
  for (const one of charts) one.cursor();
}
function drawCharts() {
  for (const chart of charts) chart.load();
  for (const chart of charts) chart.draw();
}
function zoom(lo, hi) {
  view.lo = lo, view.hi = hi, view.cursor = null;
  for (const chart of charts) chart.draw();
  const reset = document.getElementById('reset-zoom');
  if (reset) reset.hidden = lo === null;
}
