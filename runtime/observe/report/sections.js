// The parts of the page: title, numbers, curves, tables.

const stateClass = (run) => run.running ? 'busy' : run.state === 'finished' ? 'good' : ['failed', 'aborted'].includes(run.state) ? 'bad' : run.state_text.includes('died') ? 'bad' : 'warn';
const pill = (run) => el('span', { class: 'pill ' + stateClass(run) }, run.state_text);

function noteNode(text, bad) { return el('p', { class: 'note' + (bad ? ' bad' : '') }, text); }

function kpi(name, value, unit, ...more) {
  return el('div', { class: 'card kpi' }, el('div', { class: 'name' }, name),
    el('div', { class: 'value' }, value, unit && el('small', {}, ' ' + unit)), more.map((m) => m && (m.nodeType ? m : el('div', { class: 'more' }, m))));
}

function numbersOf(run) {
  const s = run.summary, of = run.total_steps;
  const progress = el('progress', { max: Math.max(1, of), value: run.step, 'aria-label': 'steps' });
  return el('div', { class: 'kpis' },
    kpi('Steps', whole(run.step), of ? 'of ' + whole(of) : '', progress, [known(s.tokens) ? count(s.tokens) + ' tokens' : '', known(s.eta_s) ? duration(s.eta_s) + ' left' : ''].filter(Boolean).join(' · ')),
    kpi('Training loss', s.loss ? digits(s.loss.value, 5) : '–', '', s.loss && s.loss.step !== run.step ? 'step ' + whole(s.loss.step) + ', the last that is a number' : 'step ' + whole(run.step)),
    kpi('Validation loss', s.val_loss ? digits(s.val_loss.value, 5) : '–', '', s.best_val_loss ? `best ${digits(s.best_val_loss.value, 5)} at step ${whole(s.best_val_loss.step)}` : 'not evaluated'),
    kpi('Speed', count(s.tokens_per_s), 'tokens/s', known(s.mfu) ? `MFU ${percent(s.mfu)}` : 'mean over the steps'),
    kpi('Time', duration(s.duration_s), '', known(s.goodput) ? `goodput ${percent(s.goodput)}` : '', `${whole(run.attempts)} ${run.attempts === 1 ? 'start' : 'starts'} of the ranks`));
}

function factsOf(run) {
  const long = run.facts.filter(([name]) => ['Command', 'Files', 'Numerics', 'Program'].includes(name));
  const short = run.facts.filter((fact) => !long.includes(fact));
  const list = (facts) => el('dl', { class: 'facts' }, facts.map(([name, text]) => [el('dt', {}, name), el('dd', { class: name === 'Command' || name === 'Files' ? 'mono' : '' }, text)]));
  const began = [['Began', `${clockTime(run.begin)}`]];
  return el('div', { class: 'card' }, list([...short, ...began]), el('details', { class: 'details' }, el('summary', {}, 'More'), list(long)));
}

const column = (run, name) => run.curves.columns[name] || null;

/// A series of each run that has the column.
function perRun(runs, name, colourName, word, more) {
  return runs.map((run, i) => column(run, name) && {
    name: runs.length > 1 ? run.id : word, run: i, colour: runs.length > 1 ? runColour(i) : colourName, table: run.curves.columns, y: column(run, name), ...more,
  }).filter(Boolean);
}

/// experts, context: waits for rows of tokens and for keys and values; communication: the other waits for peers.
const PHASES = [['forward', 'blue'], ['backward', 'orange'], ['communication', 'red'], ['experts', 'lime'], ['context', 'brown'], ['optimizer', 'purple'], ['data', 'green'], ['reporting', 'grey'],
  ['evaluation', 'teal'], ['checkpoint', 'pink']];

/// What is done between steps, after some of them.
const BETWEEN = ['evaluation', 'checkpoint'];

/// A table of curves with those rows alone of which `fits(i)`.
function rowsWhere(columns, fits) {
  const kept = columns.step.map((_, i) => i).filter(fits);
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, kept.map((i) => values[i])]));
}

/// The nodes of all curves; chosen: the index of the run whose details are shown.
function curvesOf(runs, chosen) {
  charts.length = 0;
  const nodes = [];
  const add = (has, options) => { if (has) nodes.push(new Chart(options).node); };
  const any = (name) => runs.some((run) => column(run, name));
  add(any('loss') || runs.some((run) => run.curves.not_finite), {
    title: 'Loss', format: (v) => digits(v, 4), exact: (v) => digits(v, 7), log: true, key: true, odd: ['loss', 'val_loss'], wide: true,
    series: () => [...perRun(runs, 'loss', 'blue', 'training'), ...runs.map((run, i) => run.curves.evaluations && run.curves.evaluations.loss && {
      name: runs.length > 1 ? run.id + ', validation' : 'validation', run: i, colour: runs.length > 1 ? runColour(i) : 'orange',
      table: run.curves.evaluations, y: run.curves.evaluations.loss, dots: true, bridge: true, dash: runs.length > 1 ? [5, 4] : null,
    }).filter(Boolean)],
  });
  add(runs.some((run) => run.curves.sources), {
    title: 'Loss of each source of the data', log: true, key: true, format: (v) => digits(v, 4), exact: (v) => digits(v, 7),
    series: () => runs.flatMap((run, i) => Object.entries(run.curves.sources || {}).map(([source, values], s) => ({
      name: runs.length > 1 ? `${run.id}, ${source}` : source, run: i, colour: runColour(runs.length > 1 ? i : s),
      table: run.curves.columns, y: values, bridge: true,
    }))),
  });
  add(runs.some((run) => run.curves.tasks), {
    title: 'Accuracy of tasks', zero: true, key: true, format: (v) => percent(v, 1), exact: (v) => percent(v, 2),
    series: () => runs.flatMap((run, i) => Object.entries(run.curves.tasks || {}).filter(([, table]) => table.accuracy).map(([task, table], t) => ({
      name: runs.length > 1 ? `${run.id}, ${task}` : task, run: i, colour: runColour(runs.length > 1 ? i : t),
      table, y: table.accuracy, dots: true, bridge: true,
    }))),
  });
  add(any('lr'), { title: 'Learning rate', zero: true, format: (v) => digits(v, 3), exact: (v) => digits(v, 7), series: () => perRun(runs, 'lr', 'purple', 'learning rate', { plain: true }) });
  add(any('grad_norm'), { title: 'Gradient norm', clip: true, log: true, odd: ['grad_norm'], format: (v) => digits(v, 3), exact: (v) => digits(v, 7), series: () => perRun(runs, 'grad_norm', 'teal', 'gradient norm') });
  add(any('tokens_per_s'), { title: 'Tokens a second', zero: true, format: count, exact: whole, series: () => perRun(runs, 'tokens_per_s', 'green', 'tokens/s', { bridge: true }) });
  add(any('mfu'), { title: 'Model FLOPs utilisation (MFU)', zero: true, format: (v) => percent(v, 0), exact: (v) => percent(v, 2), series: () => perRun(runs, 'mfu', 'amber', 'MFU', { bridge: true }) });
  const run = runs[chosen], of = runs.length > 1 ? ' of ' + run.id : '';
  const has = (part) => (column(run, part[0] + '_s') || []).some((v) => v > 0);
  const parts = PHASES.filter((part) => !BETWEEN.includes(part[0]) && has(part)), between = PHASES.filter((part) => BETWEEN.includes(part[0]) && has(part));
  add(parts.length, {
    title: 'Parts of a step' + of, zero: true, clip: true, key: true, format: seconds, exact: seconds,
    series: () => {
      // Some steps alone have their parts recorded: the areas go from one of these to the next.
      const recorded = rowsWhere(run.curves.columns, (i) => known(column(run, parts[0][0] + '_s')[i]));
      return parts.map(([name, paint]) => ({ name, run: chosen, colour: paint, table: recorded, y: recorded[name + '_s'], area: true }));
    },
  });
  add(between.length, {
    title: 'Evaluations and saves' + of, zero: true, log: true, key: true, format: seconds, exact: seconds,
    series: () => between.map(([name, paint]) => {
      const rows = rowsWhere(run.curves.columns, (i) => column(run, name + '_s')[i] > 0);
      return { name, run: chosen, colour: paint, table: rows, y: rows[name + '_s'], dots: true, plain: true };
    }),
  });
  add(column(run, 'compute_max_s'), {
    title: 'Computing: slowest rank and median' + of, zero: true, clip: true, key: true, format: seconds, exact: seconds, series: () => [
      { name: 'slowest', run: chosen, colour: 'red', table: run.curves.columns, y: column(run, 'compute_max_s'), bridge: true },
      { name: 'median', run: chosen, colour: 'grey', table: run.curves.columns, y: column(run, 'compute_median_s'), bridge: true }],
  });
  return nodes;
}

let shownMarks = [], shownOdd = [];
/// Places the events of a run on the axis that is on.
function placeMarks(run) {
  const steps = run.curves.columns.step, axis = axisColumn(run.curves.columns);
  const at = (step) => {
    if (view.axis === 'step' || !axis) return step;
    if (!steps.length || step < steps[0]) return 0;
    return axis[nearest(steps, step)];
  };
  const numbered = new Map();
  shownMarks = run.happenings.events.filter((e) => e.mark && (known(e.step) || view.axis === 'time') && !(e.mark === 'start' && !e.step)).map((e) => ({
    mark: e.mark, x: view.axis === 'time' ? e.t : at(e.step), words: `${MARKS[e.mark][2]}: ${e.text}`.slice(0, 160),
  })).filter((m) => {
    // One sign where many events of a kind fall on one place.
    const name = m.mark + m.x;
    if (numbered.has(name)) return false;
    numbered.set(name, true);
    return known(m.x);
  });
  shownOdd = (run.curves.not_finite || []).map(([step, what, kind]) => ({ step, what, kind, x: at(step) })).filter((o) => known(o.x));
}
const marksInView = () => shownMarks;
const oddInView = (names) => names ? shownOdd.filter((o) => names.includes(o.what)) : [];

const GROUPS = [['main', 'Main', (e) => e.mark && e.mark !== 'checkpoint'], ['trouble', 'Trouble', (e) => ['failure', 'restart', 'warning', 'node', 'skipped'].includes(e.mark)],
  ['checkpoint', 'Checkpoints', (e) => e.kind.startsWith('checkpoint') || e.kind.startsWith('save')], ['all', 'All', () => true]];
const FEW_EVENTS = 14;

function eventsOf(run) {
  const all = run.happenings.events.slice().reverse();
  if (!all.length) return el('div', { class: 'card muted' }, 'Nothing was recorded: events.jsonl is missing or empty.');
  const body = el('tbody'), more = el('button', { type: 'button' });
  let group = GROUPS.find(([, , fits]) => all.some(fits)), whole_list = false;
  const fill = () => {
    const list = all.filter(group[2]), shown = whole_list ? list : list.slice(0, FEW_EVENTS);
    body.replaceChildren(...shown.map((e) => {
      const [paint, sign] = MARKS[e.mark] || ['grey', '·'];
      const mark = el('span', { 'aria-hidden': 'true' }, sign + ' ');
      mark.style.color = colour(paint);
      return el('tr', {}, el('td', { class: 't' }, clockTime(run.begin + e.t).slice(5)), el('td', { class: 'n' }, known(e.step) ? whole(e.step) : ''),
        el('td', { class: 't' }, mark, e.kind.replaceAll('_', ' ')), el('td', { class: 'w' }, e.text));
    }));
    more.hidden = shown.length === list.length;
    more.textContent = `Show all ${list.length}`;
  };
  more.addEventListener('click', () => { whole_list = true; fill(); });
  const buttons = GROUPS.filter(([, , fits]) => all.some(fits)).map((g) => el('button', { type: 'button', 'aria-pressed': g === group ? 'true' : 'false', onclick: (event) => {
    group = g;
    for (const b of event.target.parentNode.children) b.setAttribute('aria-pressed', b === event.target ? 'true' : 'false');
    fill();
  } }, g[1]));
  fill();
  const left = run.happenings.left_out > 0 ? el('p', { class: 'muted' }, `${run.happenings.left_out} more, mostly checkpoints, are in events.jsonl.`) : null;
  return el('div', { class: 'card' }, el('div', { class: 'bar' }, el('span', { class: 'group', role: 'group', 'aria-label': 'Which events' }, buttons)),
    el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ['Time', 'Step', 'Event', ''].map((t, i) => el('th', { class: i === 1 ? 'n' : '' }, t)))), body)), more, left);
}

function specOf(run) {
  if (!run.spec.length) return el('div', { class: 'card muted' }, 'job.json is missing or damaged.');
  const body = el('tbody'), search = el('input', { type: 'search', placeholder: 'Search fields', 'aria-label': 'Search fields' });
  const given = run.spec.filter(([, , , kind]) => kind && kind !== 'default');
  let all = !given.length;
  const fill = () => {
    const word = search.value.trim().toLowerCase();
    const rows = (all || word ? run.spec : given).filter(([path, value]) => !word || path.toLowerCase().includes(word) || value.toLowerCase().includes(word));
    body.replaceChildren(...rows.map(([path, value, origin]) => el('tr', {}, el('td', { class: 'mono' }, path), el('td', { class: 'mono w' }, value),
      el('td', {}, el('span', { class: 'tag' }, origin || 'not recorded')))));
  };
  const choose = el('button', { type: 'button', 'aria-pressed': all ? 'true' : 'false', onclick: () => { all = !all; choose.setAttribute('aria-pressed', all ? 'true' : 'false'); fill(); } },
    `All ${run.spec.length} fields`);
  search.addEventListener('input', fill);
  fill();
  return el('div', { class: 'card' }, el('div', { class: 'bar' }, search, choose, el('span', { class: 'muted' }, `${given.length} were given, by the job, a preset, --set or the start`)),
    el('div', { class: 'scroll' }, el('table', {}, el('thead', {}, el('tr', {}, ['Field', 'Value', 'From'].map((t) => el('th', {}, t)))), body)));
}

/// Several runs side by side, and where their specs differ.
function comparisonOf(data) {
  const names = data.runs.map((run, i) => el('th', {}, key(runColour(i), run.id)));
  const row = (word, value) => el('tr', {}, el('td', { class: 'muted' }, word), data.runs.map((run) => el('td', {}, value(run))));
  const numbers = el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, ''), names)), el('tbody', {},
    row('State', pill), row('Steps', (r) => `${whole(r.step)} of ${whole(r.total_steps)}`), row('Training loss', (r) => r.summary.loss ? digits(r.summary.loss.value, 6) : '–'),
    row('Best validation loss', (r) => r.summary.best_val_loss ? `${digits(r.summary.best_val_loss.value, 6)} at step ${whole(r.summary.best_val_loss.step)}` : '–'),
    row('Tokens/s', (r) => count(r.summary.tokens_per_s)), row('MFU', (r) => percent(r.summary.mfu)), row('Time', (r) => duration(r.summary.duration_s)), row('Goodput', (r) => percent(r.summary.goodput))));
  const differ = data.differences.length ? el('table', {}, el('thead', {}, el('tr', {}, el('th', {}, 'Field'), names.map((n) => n.cloneNode(true)))), el('tbody', {},
    data.differences.map(([path, ...values]) => el('tr', {}, el('td', { class: 'mono' }, path), values.map((v) => el('td', { class: 'mono w' }, v || '–')))))) : el('p', { class: 'muted' }, 'The specs are equal, names and folders aside.');
  return [el('div', { class: 'card scroll' }, numbers), el('h2', {}, 'What differs in the specs'), el('div', { class: 'card scroll' }, differ)];
}
