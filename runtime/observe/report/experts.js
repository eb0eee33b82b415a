// How evenly experts are used: each expert of each layer in the newest record, and each layer over the steps.

/// As many tokens as the mean expert: grey. More: towards the ink, at 4 times; fewer: towards the paper. The
/// lightness alone says it.
function shade(ratio) {
  if (!known(ratio)) return colour('grid');
  const share = ratio > 0 ? Math.max(-1, Math.min(1, Math.log2(ratio) / 2)) : -1;
  return mixed(colour('grey'), colour(share > 0 ? 'ink' : 'card'), Math.abs(share));
}
/// A ring around a cell that is too small to be seen at once.
function ringed(c, x, y, wide, high, name) {
  if (Math.min(wide, high) >= 12) return;
  c.save();
  c.strokeStyle = colour(name);
  c.lineWidth = 2;
  c.beginPath();
  c.arc(x + wide / 2, y + high / 2, 8, 0, 2 * Math.PI);
  c.stroke();
  c.restore();
}
const MOST_RINGS = 60;

/// What has no token is crossed out.
function crossed(c, x, y, wide, high) {
  c.save();
  c.strokeStyle = colour('warm');
  c.lineWidth = Math.max(1, Math.min(2, Math.min(wide, high) / 5));
  c.beginPath();
  c.moveTo(x + 1, y + 1);
  c.lineTo(x + Math.max(wide - 2, 1), y + Math.max(high - 2, 1));
  c.moveTo(x + Math.max(wide - 2, 1), y + 1);
  c.lineTo(x + 1, y + Math.max(high - 2, 1));
  c.stroke();
  c.restore();
}

const shadeRamp = () => el('span', { class: 'ramp shades' });
const stepsText = (step, steps) => steps > 1 ? `steps ${whole(step - steps + 1)}–${whole(step)}` : `step ${whole(step)}`;

/// Layers and their experts in the newest record that has them.
function expertMap(experts) {
  const map = experts.map, each = map.experts_a_cell, columns = Math.ceil(experts.experts / each);
  const nameOf = (column) => each === 1 ? 'expert ' + column : `experts ${column * each}–${Math.min(experts.experts, (column + 1) * each) - 1}`;
  let worst = null, idle = 0, many = 0;
  map.load.forEach((loads, row) => loads.forEach((load, column) => {
    if (load === 0) ++idle;
    if (load >= 4) ++many;
    if (!worst || load > worst.load) worst = { load, row, column };
  }));
  const now = worst ? `most: ${digits(worst.load, 3)} × the mean, layer ${experts.layers[worst.row]}, ${nameOf(worst.column)} · ${idle ? `${whole(idle)} without tokens` : 'all have tokens'}` : '';
  return new CellMap({
    title: `Tokens of each expert, against the mean of its layer, in ${stepsText(map.step, map.steps)}`,
    note: each > 1 ? `the most uneven of ${each} experts` : '',
    legend: [el('span', { class: 'key' }, el('span', { class: 'swatch none' }, '×'), 'none'), 'fewer', shadeRamp(), 'more, 4 × or more'], now,
    label: `${experts.layers.length} layers with ${experts.experts} experts each. ${now}.`,
    columns, rows: experts.layers.length, columnText: (column) => String(column * each), rowText: (row) => String(experts.layers[row]), word: 'layer',
    colourOf: (column, row) => shade(map.load[row][column]),
    gapless: true,
    mark: (c, column, row, x, y, wide, high) => {
      const load = map.load[row][column];
      if (load === 0) crossed(c, x, y, wide, high);
      if ((load === 0 || load >= 4) && idle + many <= MOST_RINGS) ringed(c, x, y, wide, high, load === 0 ? 'warm' : 'ink');
    },
    tip: (column, row) => [el('b', {}, `Layer ${experts.layers[row]} · ${nameOf(column)}`), tipLine('× the mean', digits(map.load[row][column], 3)),
      map.bias ? tipLine('bias of its choice', digits(map.bias[row][column], 3)) : null],
  });
}

/// Over the steps: what a layer's experts are like. [name, words, the ratio that is drawn, text]
const LAYER_NUMBERS = [
  ['most', 'Most', (v) => v, (v) => `${digits(v, 3)} × the mean`],
  ['least', 'Least', (v) => v, (v) => `${digits(v, 3)} × the mean`],
  ['entropy', 'Entropy', (v) => 2 ** (-2 * (1 - v)), (v) => digits(v, 4)],
  ['idle', 'Without tokens', (v, experts) => v > 0 ? 2 + 2 * v / experts : 1, (v) => whole(v)],
  ['dropped', 'Dropped', (v) => v > 0 ? 4 : 1, (v) => whole(v)],
];

function layerMap(experts) {
  const numbers = LAYER_NUMBERS.filter(([name]) => experts[name]);
  let chosen = numbers[0];
  const value = (name, column, row) => (experts[name][column] || [])[row];
  const bar = el('div', { class: 'bar' }, el('span', { class: 'group', role: 'group', 'aria-label': 'Number of a layer' }, numbers.map((one) => el('button', {
    type: 'button', 'aria-pressed': one === chosen ? 'true' : 'false', onclick: (event) => {
      chosen = one;
      for (const b of event.target.parentNode.children) b.setAttribute('aria-pressed', b === event.target ? 'true' : 'false');
      map.draw();
    } }, one[1]))));
  const last = experts.steps.length - 1;
  const range = (name, pick) => digits(pick(...experts[name][last].filter(known)), 3);
  const now = `now: most ${range('most', Math.max)} ×, least ${range('least', Math.min)} ×, entropy from ${range('entropy', Math.min)}`;
  const map = new CellMap({
    title: 'Layers over the steps', note: experts.left_out ? 'the most uneven record of each stretch' : '', legend: ['even', shadeRamp(), 'uneven'], bar, now,
    label: `${experts.layers.length} layers over ${experts.steps.length} records. ${now}.`,
    columns: experts.steps.length, rows: experts.layers.length, columnText: (column) => count(experts.steps[column]), rowText: (row) => String(experts.layers[row]), word: 'layer',
    gapless: true, colourOf: (column, row) => shade(chosen[2](value(chosen[0], column, row), experts.experts)),
    tip: (column, row) => [el('b', {}, `${stepsText(experts.steps[column], experts.covered[column])} · layer ${experts.layers[row]}`),
      numbers.map(([name, words, , text]) => tipLine(words.toLowerCase(), text(value(name, column, row)))),
      experts.bias_most ? tipLine('biases', `${digits(value('bias_least', column, row), 3)} to ${digits(value('bias_most', column, row), 3)}`) : null],
  });
  return map;
}

function expertMaps(experts) {
  return [experts.map ? expertMap(experts) : null, layerMap(experts)].filter(Boolean);
}
