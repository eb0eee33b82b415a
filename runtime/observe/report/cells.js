// A picture of cells in rows and columns: what a cell looks like and says is the caller's.

/// Colours of a mix: share 0 is `from`, 1 is `to`.
function mixed(from, to, share) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const a = parts(from), b = parts(to);
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * share)).join(' ')})`;
}

/// options: title, note, legend (nodes); columns, rows (numbers); columnText(c), rowText(r) at the axes; word:
/// of a row; colourOf(c, r); mark(canvas, c, r, x, y, wide, high): draws over a cell; tip(c, r): nodes; now: a
/// sentence of what is worst; label: the picture in words; lines: rows before which a line is drawn; gapless:
/// small cells have no gaps, so that equal ones are one area.
class CellMap {
  constructor(options) {
    this.options = options;
    this.now = el('span', { class: 'now' }, options.now);
    this.canvas = el('canvas', { 'aria-hidden': 'true' });
    this.plot = el('div', { class: 'plot', tabindex: '0', role: 'img', 'aria-label': `${options.label} Arrow keys move over the cells.` }, this.canvas);
    this.plot.style.height = Math.max(120, Math.min(420, options.rows * (options.rows <= 16 ? 18 : 6) + 34)) + 'px';
    this.node = el('figure', { class: 'card wide' },
      el('figcaption', {}, el('h3', {}, options.title), options.note ? el('span', { class: 'muted' }, options.note) : null,
        el('span', { class: 'legend' }, options.legend), this.now), options.bar, this.plot);
    this.cell = null;
    this.plot.addEventListener('pointermove', (event) => this.point(event));
    this.plot.addEventListener('pointerdown', (event) => this.point(event));
    this.plot.addEventListener('pointerleave', () => this.show(null));
    this.plot.addEventListener('blur', () => this.show(null));
    this.plot.addEventListener('keydown', (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      const [column, row] = this.cell || [options.columns - 1, -1];
      this.show([Math.min(options.columns - 1, Math.max(0, column + move[0])), Math.min(options.rows - 1, Math.max(0, row + move[1]))]);
    });
  }
  draw() {
    const box = this.plot.getBoundingClientRect(), scale = window.devicePixelRatio || 1, { columns, rows, ...o } = this.options;
    if (box.width < 20) return;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    const c = this.canvas.getContext('2d');
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, box.width, box.height);
    this.frame = { left: 52, top: 4, width: box.width - 62, tall: box.height - 30 };
    const { left, top, width, tall } = this.frame, wide = width / columns, high = tall / rows;
    // What lies beside without a gap overlaps a little, so that no line shows.
    const drawn = (size, from) => Math.max(size - (size > from ? 1 : 0), 0.5) + (size > from ? 0 : 0.4);
    const [gapX, gapY] = o.gapless ? [12, 12] : [6, 5];
    for (let column = 0; column < columns; ++column)
      for (let row = 0; row < rows; ++row) {
        const x = left + column * wide, y = top + row * high;
        c.fillStyle = o.colourOf(column, row);
        c.fillRect(x, y, drawn(wide, gapX), drawn(high, gapY));
      }
    for (let column = 0; o.mark && column < columns; ++column)
      for (let row = 0; row < rows; ++row) o.mark(c, column, row, left + column * wide, top + row * high, wide, high);
    c.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif';
    c.fillStyle = colour('muted');
    c.textAlign = 'right';
    c.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(rows / Math.max(1, Math.floor(tall / 15))));
    for (let row = 0; row < rows; row += every) c.fillText(o.rowText(row), left - 6, top + (row + 0.5) * high);
    c.textAlign = 'center';
    c.textBaseline = 'top';
    const most = Math.max(1, Math.floor(width / 70)), step = Math.max(1, Math.ceil(columns / most));
    for (let column = 0; column < columns; column += step)
      c.fillText(o.columnText(column), Math.max(left + 10, left + (column + 0.5) * wide), top + tall + 6);
    c.save();
    c.translate(10, top + tall / 2);
    c.rotate(-Math.PI / 2);
    c.textBaseline = 'middle';
    c.fillText(o.word, 0, 0);
    c.restore();
    c.fillStyle = colour('ink');
    for (const row of o.lines || []) c.fillRect(left, top + Math.round(row * high) - 0.5, width, 1);
  }
  point(event) {
    if (!this.frame) return;
    const column = Math.floor((event.offsetX - this.frame.left) / this.frame.width * this.options.columns);
    const row = Math.floor((event.offsetY - this.frame.top) / this.frame.tall * this.options.rows);
    const inside = column >= 0 && column < this.options.columns && row >= 0 && row < this.options.rows;
    this.show(inside ? [column, row] : null);
  }
  show(cell) {
    this.cell = cell;
    if (this.tip) { this.tip.remove(); this.tip = null; }
    if (!cell || !this.frame) return;
    const [column, row] = cell;
    this.tip = el('div', { class: 'tip' }, this.options.tip(column, row));
    this.plot.append(this.tip);
    const x = this.frame.left + (column + 0.5) / this.options.columns * this.frame.width, y = this.frame.top + (row + 0.5) / this.options.rows * this.frame.tall;
    const wide = this.tip.offsetWidth, high = this.tip.offsetHeight, box = this.plot.getBoundingClientRect();
    this.tip.style.left = Math.max(0, x + 14 + wide > box.width ? x - 14 - wide : x + 14) + 'px';
    this.tip.style.top = Math.max(0, Math.min(y - high / 2, box.height - high)) + 'px';
  }
}
/// A line of a tip.
const tipLine = (name, value) => el('div', {}, name, el('span', { class: 'of' }, value));
