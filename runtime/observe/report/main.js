// Puts the page together, and keeps it up to date where `trainctl status --serve` gives it.
let data = JSON.parse(document.getElementById('report-data').textContent);
let chosen = 0, pictures = [];

function setTheme(choice) {
  const dark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  styles = null;
}
const THEMES = { auto: '◐ Auto', light: '☀ Light', dark: '☾ Dark' };
let theme = THEMES[store.get('theme')] ? store.get('theme') : 'auto';

function themeButton() {
  const button = el('button', { type: 'button', 'aria-label': 'Colours: ' + theme, onclick: () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    store.set('theme', theme);
    setTheme(theme);
    build();
  } }, THEMES[theme]);
  return button;
}

function titleOf() {
  const single = data.runs.length === 1, run = data.runs[0];
  return [el('div', { class: 'title' }, el('h1', {}, single ? run.name : `${data.runs.length} runs`), single ? [run.id !== run.name ? el('span', { class: 'id mono' }, run.id) : null, pill(run)] : null,
    el('span', { class: 'grow' }), data.live ? el('span', { class: 'muted', id: 'live', role: 'status' }, '') : null, themeButton()),
  single && run.description ? el('p', { class: 'muted' }, run.description) : null];
}

function axisBar() {
  const axes = [['step', 'Steps'], ['tokens', 'Tokens'], ['time', 'Time']].filter(([name]) => data.runs.some((run) => run.curves.columns[name === 'time' ? 't' : name]));
  const group = el('span', { class: 'group', role: 'group', 'aria-label': 'Horizontal axis' }, axes.map(([name, word]) => el('button', { type: 'button', 'aria-pressed': view.axis === name ? 'true' : 'false', onclick: (event) => {
    view.axis = name, view.lo = view.hi = null;
    for (const b of group.children) b.setAttribute('aria-pressed', b === event.target ? 'true' : 'false');
    placeMarks(data.runs[chosen]);
    drawCharts();
  } }, word)));
  const box = (word, name) => {
    const input = el('input', { type: 'checkbox', onchange: () => { view[name] = input.checked; drawCharts(); } });
    input.checked = view[name];
    return el('label', {}, input, word);
  };
  return el('div', { class: 'bar' }, group, box('Smooth', 'smooth'), box('Log scale', 'log'), box('Events', 'marks'),
    el('button', { type: 'button', id: 'reset-zoom', hidden: view.lo === null, onclick: () => zoom(null, null) }, 'Reset zoom'),
    el('span', { class: 'muted' }, 'Drag over a chart to zoom.'));
}

function runChooser() {
  if (data.runs.length === 1) return null;
  const select = el('select', { 'aria-label': 'Run', onchange: () => { chosen = Number(select.value); build(); } }, data.runs.map((run, i) => el('option', { value: String(i), selected: i === chosen }, run.id)));
  return el('div', { class: 'bar' }, el('label', {}, 'Details of', select));
}

function build() {
  if (data.simulation) return buildSimulation(data.simulation);
  const run = data.runs[chosen], single = data.runs.length === 1, main = document.getElementById('main');
  const open = [...main.querySelectorAll('details')].map((d) => d.open);
  document.getElementById('top').replaceChildren(...titleOf().filter(Boolean));
  const parts = [];
  for (const one of data.runs) for (const text of one.notes) parts.push(noteNode(single ? text : `${one.id}: ${text}`));
  if (single && run.reason && !run.running) parts.push(noteNode(run.reason + (run.next ? ` Next: ${run.next}` : ''), run.state === 'failed'));
  if (single) parts.push(numbersOf(run), el('div', { class: 'grid' }, factsOf(run), timePicture(run.time))); else parts.push(el('h2', {}, 'Side by side'), ...comparisonOf(data));
  parts.push(el('h2', {}, 'Curves'));
  const curves = curvesOf(data.runs, chosen);
  placeMarks(run);
  if (curves.length) parts.push(axisBar(), el('div', { class: 'grid' }, curves));
  else parts.push(el('p', { class: 'card muted' }, run.running ? 'No step has ended yet.' : 'No step has ended.'));
  parts.push(el('h2', {}, 'Ranks, pipeline and memory'));
  const chooser = runChooser();
  if (chooser) parts.push(chooser);
  pictures = [];
  const details = [];
  if (!single) details.push(factsOf(run), timePicture(run.time));
  if (run.ranks && run.ranks.ranks > 1) { const map = rankMap(run.ranks); pictures.push(map); details.push(map.node); }
  const pipeline = run.plan && pipelinePicture(run.plan);
  if (pipeline) { pipeline.classList.add('wide'); details.push(pipeline); }
  const memory = run.plan && memoryPicture(run.plan);
  if (memory) { memory.classList.add('wide'); details.push(memory); }
  const found = details.filter(Boolean);
  parts.push(found.length ? el('div', { class: 'grid' }, found) : el('p', { class: 'card muted' }, 'There is no plan of this run, and no numbers of its ranks.'));
  if (run.experts) {
    const maps = expertMaps(run.experts);
    pictures.push(...maps);
    parts.push(el('h2', {}, 'Experts' + (single ? '' : ' of ' + run.id)), el('div', { class: 'grid' }, maps.map((map) => map.node)));
  }
  parts.push(el('h2', {}, 'Events' + (single ? '' : ' of ' + run.id)), eventsOf(run), el('h2', {}, 'Job spec' + (single ? '' : ' of ' + run.id)), specOf(run));
  main.replaceChildren(...parts);
  [...main.querySelectorAll('details')].forEach((d, i) => { d.open = Boolean(open[i]); });
  const steps = run.curves.steps, shown = (run.curves.columns.step || []).length;
  document.getElementById('foot').replaceChildren(
    `${data.live ? 'Read' : 'Made'} by trainctl ${data.program} on ${clockTime(data.made)}.` + (shown < steps ? ` The curves show ${whole(shown)} of ${whole(steps)} steps, each with its own numbers; metrics.jsonl has all.` : ''));
  drawCharts();
  for (const picture of pictures) picture.draw();
}

let etag = null;
/// Asks for new data. A server that does not answer is said so; the page stays.
async function refresh() {
  const live = () => document.getElementById('live');
  try {
    const answer = await fetch('api/report', { headers: etag ? { 'If-None-Match': etag } : {}, cache: 'no-store' });
    if (answer.status === 200) {
      etag = answer.headers.get('ETag');
      const fresh = await answer.json(), busy = document.activeElement && document.activeElement.type === 'search';
      if (!busy && !view.cursor) { const at = window.scrollY; data = fresh; chosen = Math.min(chosen, data.runs.length - 1); build(); window.scrollTo(0, at); }
    }
    if (live()) live().textContent = answer.ok || answer.status === 304 ? '● live' : `the server answers ${answer.status}`;
  } catch (error) {
    if (live()) live().textContent = 'the server does not answer';
  }
}

setTheme(theme);
view.smooth = data.runs.some((run) => run.curves.steps > 300);
if (!data.simulation) document.title = data.runs.length === 1 ? `${data.runs[0].id} · trainctl` : `${data.runs.length} runs · trainctl`;
build();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { setTheme(theme); build(); });
let waiting = 0;
window.addEventListener('resize', () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { for (const chart of charts) chart.draw(); for (const picture of pictures) picture.draw(); }, 80);
});
if (data.live) {
  if (location.search.includes('token=')) history.replaceState(null, '', location.pathname);
  setInterval(refresh, 2000);
  refresh();
}
document.documentElement.dataset.ready = String(Math.round(performance.now()));
