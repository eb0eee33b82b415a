// The page of `trainctl simulate --html`: where the time goes, which failures take it, and what is left of it by spares and interval.

/// Best is green, and a cell that loses a tenth of the time more is fully red.
function lossColour(effective, best) {
  return mixed(colour('green'), colour('red'), Math.min(1, Math.max(0, best - effective) / 0.1));
}

/// Spares in rows, intervals of the directory in columns.
function simulatedGrid(sim) {
  const grid = sim.survey ? sim.survey.grid : [];
  const spares = [...new Set(grid.map((row) => row.spares))], intervals = [...new Set(grid.map((row) => row.directory_steps))];
  if (!grid.length) return null;
  const at = (column, row) => grid.find((one) => one.spares === spares[row] && one.directory_steps === intervals[column]);
  const best = grid.reduce((most, one) => one.effective > most.effective ? one : most);
  const now = `best: ${percent(best.effective, 2)} with ${count(best.spares)} spares and a save every ${count(best.directory_steps)} steps`;
  return new CellMap({
    title: 'What failures and saves leave, by spare nodes and interval of checkpoints', note: `${count(sim.survey.failures)} failures in ${count(sim.survey.histories)} histories of ${duration(sim.survey.length_ns / 1e9)}, the same ones in each cell`,
    legend: ['as the best', key('green', ''), key('red', 'a tenth of the time less')], now, label: `${spares.length} numbers of spares and ${intervals.length} intervals. ${now}.`,
    columns: intervals.length, rows: spares.length, columnText: (column) => duration(intervals[column] * sim.step_s), rowText: (row) => String(spares[row]), word: 'spares',
    colourOf: (column, row) => lossColour(at(column, row).effective, best.effective),
    tip: (column, row) => [el('b', {}, `${spares[row]} spares · every ${whole(intervals[column])} steps`), tipLine('left of the time', percent(at(column, row).effective, 3))],
  });
}

function simulatedFailures(sim) {
  const rows = sim.failures.filter((one) => one.failures > 0 || one.cost_ns > 0).sort((a, b) => b.cost_ns - a.cost_ns);
  return el('div', { class: 'card scroll wide' }, el('table', {}, el('thead', {}, el('tr', {}, ['Failure', 'Number', 'Ended attempts', 'Of the time', 'Each'].map((word) => el('th', {}, word)))),
    el('tbody', {}, rows.map((one) => el('tr', {}, [one.what, whole(one.failures), whole(one.interruptions), percent(one.cost_ns / sim.wall_ns, 3),
      seconds(one.cost_ns / 1e9 / Math.max(1, one.failures))].map((text) => el('td', {}, text)))))));
}

/// The nodes that are being repaired, over time.
function simulatedNodes(sim) {
  return new Chart({ title: 'Nodes that are out', format: (value) => count(value), zero: true, wide: true, stepless: true,
    series: () => [{ name: 'nodes', colour: 'blue', plain: true, table: { t: sim.nodes_out.map((row) => row[0]), step: sim.nodes_out.map((row, i) => i) }, y: sim.nodes_out.map((row) => row[1]) }] });
}

function buildSimulation(sim) {
  const seconds = Object.fromEntries(Object.entries(sim.time_ns).map(([cause, ns]) => [cause, ns / 1e9]));
  const time = { supervised_s: sim.wall_ns / 1e9 - seconds.stopped, goodput: sim.goodput, seconds };
  document.getElementById('top').replaceChildren(el('div', { class: 'title' }, el('h1', {}, sim.job + ', simulated'), el('span', { class: 'grow' }), themeButton()),
    el('p', { class: 'muted' }, `${whole(sim.gpus)} GPUs, ${whole(sim.nodes)} nodes and ${whole(sim.spares)} spares; ${duration(sim.wall_ns / 1e9)}; failures of ${sim.fleet}, seed ${sim.seed}. ${percent(sim.effective, 2)} of what a fleet without failures and saves does; ${whole(sim.spares_for_99)} spares are enough for 99 % of the time.`));
  view.axis = 'time';
  charts.length = 0;
  const nodes = simulatedNodes(sim), grid = simulatedGrid(sim);
  pictures = grid ? [grid] : [];
  document.getElementById('main').replaceChildren(el('div', { class: 'grid' }, timePicture(time), grid ? grid.node : [], nodes.node), el('h2', {}, 'Failures'), simulatedFailures(sim),
    el('p', { class: 'muted' }, sim.source));
  document.getElementById('foot').replaceChildren(`Made by trainctl ${data.program}.`);
  drawCharts();
  for (const picture of pictures) picture.draw();
}
