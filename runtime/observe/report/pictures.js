// Pictures that are no curves: ranks over steps, memory against the plan, the pipeline of a step, the use of time.

const titled = (title, legend, now, ...body) => el('figure', { class: 'card' },
  el('figcaption', {}, el('h3', {}, title), legend && el('span', { class: 'legend' }, legend), now), body);
const key = (name, word) => el('span', { class: 'key' }, el('span', { class: 'swatch', colour: colour(name) }), word);

function mixed(from, to, share) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const a = parts(from), b = parts(to);
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * share)).join(' ')})`;
}
/// Within a tenth of the median a rank is as the others. Blue: faster; red: slower, fully so at 1.6 times.
function heat(ratio) {
  if (!known(ratio)) return colour('grid');
  const share = Math.min(1, Math.max(0, Math.abs(ratio - 1) - 0.1) / 0.5);
  return mixed(colour('mid'), colour(ratio > 1 ? 'warm' : 'cool'), ratio > 1 ? share : share * 0.7);
}

class HeatMap {
  constructor(grid) {
    this.grid = grid;
    this.now = el('span', { class: 'now' });
    this.canvas = el('canvas', { 'aria-hidden': 'true' });
    this.plot = el('div', { class: 'plot', tabindex: '0', role: 'img' }, this.canvas);
    const tall = Math.max(120, Math.min(420, grid.rows * (grid.rows <= 16 ? 18 : 6) + 34));
    this.plot.style.height = tall + 'px';
    this.node = el('figure', { class: 'card wide' },
      el('figcaption', {}, el('h3', {}, 'Time of each rank, against the median of its stage'),
        grid.steps[1] > grid.steps[0] + 1 ? el('span', { class: 'muted' }, `the worst step of each ${grid.steps[1] - grid.steps[0]}`) : null,
        el('span', { class: 'legend' }, 'faster', el('span', { class: 'ramp' }), 'slower, 1.6 × or more'), this.now), this.plot);
    this.cell = null;
    this.plot.addEventListener('pointermove', (event) => this.point(event));
    this.plot.addEventListener('pointerdown', (event) => this.point(event));
    this.plot.addEventListener('pointerleave', () => this.show(null));
    this.plot.addEventListener('blur', () => this.show(null));
    this.plot.addEventListener('keydown', (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [column, row] = this.cell || [grid.steps.length - 1, -1];
      this.show([Math.min(grid.steps.length - 1, Math.max(0, column + move[0])), Math.min(grid.rows - 1, Math.max(0, row + move[1]))]);
    });
    const slow = this.slowest();
    this.now.textContent = slow.text;
    this.plot.setAttribute('aria-label', `${grid.ranks} ranks over ${grid.steps.length} steps. ${slow.text}. Arrow keys move over the cells.`);
  }
  ratio(column, row) {
    const value = (this.grid.compute_s[column] || [])[row], medians = this.grid.median_s[column] || [];
    const each = Math.ceil((this.grid.compute_s[column] || []).length / Math.max(1, medians.length));
    const median = medians[Math.min(medians.length - 1, Math.floor(row / each))];
    return known(value) && median > 0 ? value / median : null;
  }
  /// The rank that is most above its stage on average.
  slowest() {
    let worst = -1, most = 0;
    for (let row = 0; row < this.grid.rows; ++row) {
      const ratios = this.grid.steps.map((step, column) => this.ratio(column, row)).filter(known);
      const mean = ratios.reduce((sum, value) => sum + value, 0) / Math.max(1, ratios.length);
      if (mean > most) { most = mean; worst = row; }
    }
    if (worst < 0) return { text: '' };
    return { row: worst, text: most < 1.05 ? 'no rank is slow' : `slowest: ${this.rankName(worst)}, ${digits(most, 3)} × the median on average` };
  }
  rankName(row) {
    const each = this.grid.ranks_a_row, first = row * each;
    return each === 1 ? 'rank ' + row : `ranks ${first}–${Math.min(this.grid.ranks, first + each) - 1}`;
  }
  draw() {
    const box = this.plot.getBoundingClientRect(), scale = window.devicePixelRatio || 1, grid = this.grid;
    if (box.width < 20) return;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    const c = this.canvas.getContext('2d');
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, box.width, box.height);
    this.frame = { left: 52, top: 4, width: box.width - 62, tall: box.height - 30 };
    const { left, top, width, tall } = this.frame, columns = grid.steps.length, wide = width / columns, high = tall / grid.rows;
    for (let column = 0; column < columns; ++column)
      for (let row = 0; row < grid.rows; ++row) {
        c.fillStyle = heat(this.ratio(column, row));
        c.fillRect(left + column * wide, top + row * high, Math.max(wide - (wide > 6 ? 1 : 0), 0.5) + (wide > 6 ? 0 : 0.4), Math.max(high - (high > 5 ? 1 : 0), 0.5) + (high > 5 ? 0 : 0.4));
      }
    c.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif';
    c.fillStyle = colour('muted');
    c.textAlign = 'right';
    c.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(grid.rows / Math.max(1, Math.floor(tall / 15))));
    for (let row = 0; row < grid.rows; row += every) c.fillText(String(row * grid.ranks_a_row), left - 6, top + (row + 0.5) * high);
    c.textAlign = 'center';
    c.textBaseline = 'top';
    const most = Math.max(1, Math.floor(width / 70)), step = Math.max(1, Math.ceil(columns / most));
    for (let column = 0; column < columns; column += step)
      c.fillText(count(grid.steps[column]), Math.max(left + 10, left + (column + 0.5) * wide), top + tall + 6);
    c.save();
    c.translate(10, top + tall / 2);
    c.rotate(-Math.PI / 2);
    c.textBaseline = 'middle';
    c.fillText('rank', 0, 0);
    c.restore();
    // Stages differ in their work: a line between them.
    c.fillStyle = colour('ink');
    for (let s = 1; s < grid.stages && grid.stages <= grid.rows; ++s) c.fillRect(left, top + Math.round(s * tall / grid.stages) - 0.5, width, 1);
  }
  point(event) {
    if (!this.frame) return;
    const column = Math.floor((event.offsetX - this.frame.left) / this.frame.width * this.grid.steps.length);
    const row = Math.floor((event.offsetY - this.frame.top) / this.frame.tall * this.grid.rows);
    const inside = column >= 0 && column < this.grid.steps.length && row >= 0 && row < this.grid.rows;
    this.show(inside ? [column, row] : null);
  }
  show(cell) {
    this.cell = cell;
    if (this.tip) { this.tip.remove(); this.tip = null; }
    if (!cell || !this.frame) return;
    const [column, row] = cell, grid = this.grid;
    const line = (name, value) => el('div', {}, name, el('span', { class: 'of' }, value));
    this.tip = el('div', { class: 'tip' }, el('b', {}, `Step ${whole(grid.steps[column])} · ${this.rankName(row)}`),
      line('computing', seconds(grid.compute_s[column][row])), line('× the median', known(this.ratio(column, row)) ? digits(this.ratio(column, row), 3) : '–'),
      line('waiting for peers', seconds((grid.wait_s[column] || [])[row])));
    this.plot.append(this.tip);
    const x = this.frame.left + (column + 0.5) / grid.steps.length * this.frame.width, y = this.frame.top + (row + 0.5) / grid.rows * this.frame.tall;
    const wide = this.tip.offsetWidth, high = this.tip.offsetHeight, box = this.plot.getBoundingClientRect();
    this.tip.style.left = Math.max(0, x + 14 + wide > box.width ? x - 14 - wide : x + 14) + 'px';
    this.tip.style.top = Math.max(0, Math.min(y - high / 2, box.height - high)) + 'px';
  }
}

const TERMS = {
  weights: ['blue', 'weights'], gradients: ['teal', 'gradients'], optimizer: ['purple', 'optimizer'], activations: ['orange', 'activations'],
  scratch: ['amber', 'scratch'], communication: ['pink', 'communication'], data: ['green', 'data'], workspace: ['red', 'workspace'],
  copies: ['green', 'copies of the state in /dev/shm'], nccl_estimate: ['pink', 'NCCL (estimate)'], saving: ['muted', 'saving'], program: ['grey', 'program and libraries'],
};
const MOST_STAGES = 16;

/// Bars of the planned parts, and a line at what was measured.
function memoryPicture(plan) {
  const stages = (plan.memory || []).slice(0, MOST_STAGES);
  if (!stages.length) return null;
  const most = Math.max(...stages.map((s) => Math.max(s.total, s.measured || 0))) * 1.02;
  const used = new Map(), words = [];
  const share = (value) => (100 * value / most).toFixed(2) + '%';
  const rows = stages.map((stage) => {
    const bar = el('div', { class: 'bar-of' }, stage.terms.map(([name, size]) => {
      const [paint, word] = TERMS[name] || ['grey', name];
      used.set(word, paint);
      const part = el('span', { title: `${word}: ${bytes(size)}`, colour: colour(paint) });
      part.style.width = share(size);
      return part;
    }));
    let text = bytes(stage.total) + ' planned';
    if (known(stage.measured)) {
      const line = el('i', { title: `measured: ${bytes(stage.measured)}, rank ${stage.measured_rank}` });
      line.style.left = share(stage.measured);
      bar.append(line);
      text = `${bytes(stage.measured)} of ${bytes(stage.total)} (${percent(stage.measured / stage.total, 0)})`;
    }
    words.push(`stage ${stage.stage}: ${text}`);
    return [el('span', { class: 'muted' }, plan.memory.length > 1 ? 'Stage ' + stage.stage : 'Ranks'), bar, el('span', {}, text)];
  });
  const legend = [...used].map(([word, paint]) => key(paint, word));
  legend.push(el('span', { class: 'key' }, el('span', { class: 'swatch thin', colour: colour('ink') }), 'measured peak'));
  const more = plan.memory.length > MOST_STAGES ? el('p', { class: 'muted' }, `and ${plan.memory.length - MOST_STAGES} more stages`) : null;
  return titled('Memory of a rank, against the plan', null, null,
    el('div', { class: 'memory', role: 'img', 'aria-label': 'Planned memory of a rank, and the measured peak. ' + words.join('; ') }, rows), el('div', { class: 'legend' }, legend), more);
}

/// The step as its stages compute it, by counted FLOPs.
function pipelinePicture(plan) {
  const p = plan.pipeline;
  if (!p) return null;
  const row = p.stages.length > 24 ? 12 : 26, left = 62, wide = 1100;
  const svg = el('svg', { viewBox: `0 0 ${left + wide} ${p.stages.length * row + 2}`, role: 'img',
    'aria-label': `Pipeline of a step on ${p.stages.length} stages, schedule ${p.schedule}, idle for ${percent(plan.bubble)}` });
  const paints = { F: 'blue', B: 'orange', W: 'green' };
  const names = { F: 'forward', B: 'backward, gradient of the input', W: 'backward, gradient of the weights' };
  p.stages.forEach((spans, stage) => {
    const y = stage * row;
    if (row > 14 || stage % 4 === 0) svg.append(el('text', { x: 0, y: y + row / 2 + 3 }, 'stage ' + stage));
    svg.append(el('rect', { x: left, y, width: wide, height: row - 3, fill: colour('grid') }));
    for (const [letter, micro, part, begin, end] of spans) {
      const width = Math.max(0.6, (end - begin) * wide - 1);
      const box = el('rect', { x: left + begin * wide, y, width, height: row - 3, rx: row > 14 ? 2 : 0, fill: colour(paints[letter]) },
        el('title', {}, `${names[letter]} of micro-batch ${micro}${p.virtual_stages > 1 ? `, virtual stage ${part}` : ''}`));
      svg.append(box);
      if (width > 14 && row > 14) svg.append(el('text', { class: 'in', x: left + begin * wide + width / 2, y: y + row / 2 + 2, 'text-anchor': 'middle' }, String(micro)));
    }
  });
  const drawn = p.drawn_micro_batches < p.micro_batches ? ` · the first ${p.drawn_micro_batches} of ${p.micro_batches} micro-batches` : ` · ${p.micro_batches} micro-batches`;
  return titled('Pipeline of a step', [key('blue', 'forward'), key('orange', 'backward: input'), key('green', 'backward: weights'), key('grid', 'idle')],
    el('span', { class: 'now' }, `${p.schedule}${drawn} · the stages are idle for ${percent(plan.bubble)}, by counted FLOPs`), el('div', { class: 'scroll' }, svg));
}

const USES = [['training_s', 'blue', 'steps that count'], ['evaluation_s', 'teal', 'evaluation'], ['saving_s', 'purple', 'saving'],
  ['lost_s', 'red', 'steps done again'], ['other_s', 'grey', 'starting, ending, recovering']];

function timePicture(time) {
  if (!(time.supervised_s > 0)) return null;
  const parts = USES.map(([name, paint, word]) => [time[name] || 0, paint, word]).filter(([value]) => value > 0);
  const bar = el('div', { class: 'parts', role: 'img', 'aria-label': parts.map(([v, , w]) => `${w}: ${duration(v)}`).join('; ') },
    parts.map(([value, paint, word]) => {
      const part = el('span', { title: `${word}: ${duration(value)}`, colour: colour(paint) });
      part.style.flexGrow = String(value);
      return part;
    }));
  const rows = parts.map(([value, paint, word]) => el('tr', {}, el('td', {}, key(paint, word)), el('td', { class: 'n' }, duration(value)), el('td', { class: 'n' }, percent(value / time.supervised_s))));
  const lost = time.lost_steps > 0 ? `${whole(time.lost_steps)} steps were done again` : null;
  return titled('What the time was spent on', null, el('span', { class: 'now' }, [duration(time.supervised_s), lost].filter(Boolean).join(' · ')), bar, el('table', {}, el('tbody', {}, rows)));
}
