// Pictures that are no curves: ranks over steps, memory against the plan, the pipeline of a step, the use of time.

const titled = (title, legend, now, ...body) => el('figure', { class: 'card' },
  el('figcaption', {}, el('h3', {}, title), legend && el('span', { class: 'legend' }, legend), now), body);
const key = (name, word) => el('span', { class: 'key' }, el('span', { class: 'swatch', colour: colour(name) }), word);

/// Within a tenth of the median a rank is as the others. Blue: faster; red: slower, fully so at 1.6 times.
function heat(ratio) {
  if (!known(ratio)) return colour('grid');
  const share = Math.min(1, Math.max(0, Math.abs(ratio - 1) - 0.1) / 0.5);
  return mixed(colour('mid'), colour(ratio > 1 ? 'warm' : 'cool'), ratio > 1 ? share : share * 0.7);
}

/// Ranks over steps: a slow rank is a row that stands out.
function rankMap(grid) {
  const ratio = (column, row) => {
    const values = grid.compute_s[column] || [], medians = grid.median_s[column] || [];
    const each = Math.ceil(values.length / Math.max(1, medians.length));
    const median = medians[Math.min(medians.length - 1, Math.floor(row / each))];
    return known(values[row]) && median > 0 ? values[row] / median : null;
  };
  const nameOf = (row) => {
    const each = grid.ranks_a_row, first = row * each;
    return each === 1 ? 'rank ' + row : `ranks ${first}–${Math.min(grid.ranks, first + each) - 1}`;
  };
  // The rank that is most above its stage on average.
  let worst = -1, most = 0;
  for (let row = 0; row < grid.rows; ++row) {
    const ratios = grid.steps.map((step, column) => ratio(column, row)).filter(known);
    const mean = ratios.reduce((sum, value) => sum + value, 0) / Math.max(1, ratios.length);
    if (mean > most) { most = mean; worst = row; }
  }
  const slow = worst < 0 ? '' : most < 1.05 ? 'no rank is slow' : `slowest: ${nameOf(worst)}, ${digits(most, 3)} × the median on average`;
  // Stages differ in their work: a line between them.
  const lines = [];
  for (let s = 1; s < grid.stages && grid.stages <= grid.rows; ++s) lines.push(s * grid.rows / grid.stages);
  return new CellMap({
    title: 'Time of each rank, against the median of its stage', note: grid.steps[1] > grid.steps[0] + 1 ? `the worst step of each ${grid.steps[1] - grid.steps[0]}` : '',
    legend: ['faster', el('span', { class: 'ramp' }), 'slower, 1.6 × or more'], now: slow, label: `${grid.ranks} ranks over ${grid.steps.length} steps. ${slow}.`,
    columns: grid.steps.length, rows: grid.rows, columnText: (column) => count(grid.steps[column]), rowText: (row) => String(row * grid.ranks_a_row), word: 'rank', lines,
    colourOf: (column, row) => heat(ratio(column, row)),
    tip: (column, row) => [el('b', {}, `Step ${whole(grid.steps[column])} · ${nameOf(row)}`),
      tipLine('computing', seconds(grid.compute_s[column][row])), tipLine('× the median', known(ratio(column, row)) ? digits(ratio(column, row), 3) : '–'),
      tipLine('waiting for peers', seconds((grid.wait_s[column] || [])[row]))],
  });
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

/// The causes of the ledger (runtime/run/record/time_ledger.h), but for the time in which the run was stopped.
const USES = [['training', 'blue', 'steps that count'], ['bubble', 'cool', 'pipeline bubble'], ['stragglers', 'orange', 'waiting for slower ranks'], ['evaluation', 'teal', 'evaluation'],
  ['saving', 'purple', 'waiting for saves'], ['recomputed', 'red', 'steps done again'], ['detecting', 'pink', 'detecting failures'], ['recovering', 'amber', 'recovering'],
  ['idle', 'brown', 'waiting for nodes'], ['starting', 'lime', 'starting and ending ranks'], ['loading', 'green', 'loading'], ['unknown', 'grey', 'not recorded']];
const MOST_ATTEMPTS = 24;

/// One bar of the causes; `whole_s`: the time that has the full width.
function causesBar(seconds, whole_s) {
  const parts = USES.map(([name, paint, word]) => [seconds[name] || 0, paint, word]).filter(([value]) => value > 0);
  const sum = parts.reduce((all, [value]) => all + value, 0);
  const bar = el('div', { class: 'parts', role: 'img', 'aria-label': parts.map(([v, , w]) => `${w}: ${duration(v)}`).join('; ') },
    parts.map(([value, paint, word]) => {
      const part = el('span', { title: `${word}: ${duration(value)}`, colour: colour(paint) });
      part.style.flexGrow = String(value);
      return part;
    }));
  bar.style.width = `${Math.max(1, 100 * sum / whole_s)}%`;
  return [bar, parts];
}

/// A bar for each attempt, as long as the attempt was.
function attemptBars(time) {
  const attempts = (time.attempts || []).filter((one) => one.epoch > 0), shown = attempts.slice(-MOST_ATTEMPTS);
  if (attempts.length < 2) return null;
  const sum = (one) => USES.reduce((all, [name]) => all + (one.seconds[name] || 0), 0), longest = Math.max(...shown.map(sum));
  return el('details', { class: 'details' }, el('summary', {}, shown.length < attempts.length ? `The last ${shown.length} of ${whole(attempts.length)} attempts` : `Each of ${attempts.length} attempts`),
    el('table', {}, el('tbody', {}, shown.map((one) => el('tr', {}, el('td', { class: 'n' }, whole(one.epoch)), el('td', {}, `${whole(one.ranks)} ranks`),
      el('td', { class: 'n' }, duration(sum(one))), el('td', { class: 'w' }, causesBar(one.seconds, longest)[0]))))));
}

function timePicture(time) {
  if (!(time.supervised_s > 0)) return null;
  const [bar, parts] = causesBar(time.seconds, time.supervised_s);
  const rows = parts.map(([value, paint, word]) => el('tr', {}, el('td', {}, key(paint, word)), el('td', { class: 'n' }, duration(value)), el('td', { class: 'n' }, percent(value / time.supervised_s))));
  const now = [`goodput ${percent(time.goodput)} of ${duration(time.supervised_s)}`, time.lost_steps > 0 && `${whole(time.lost_steps)} steps were done again`,
    time.seconds.stopped > 0 && `stopped for ${duration(time.seconds.stopped)} more`].filter(Boolean).join(' · ');
  return titled('What the time was spent on', null, el('span', { class: 'now' }, now), bar, el('table', {}, el('tbody', {}, rows)), attemptBars(time));
}
