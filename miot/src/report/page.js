// Sorts tables by a click on a column and saves plots as files. The page is complete without this
// script.
'use strict';
const value = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
};
for (const table of document.querySelectorAll('table')) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement('button');
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') !== 'descending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const order = (a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        const found = typeof x === 'number' ? x - y : x.localeCompare(y);
        return down ? -found : found;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}

// Returns a plot as a separate file: with its own style, on white, with title, key and names of
// axes, which the page does not show within the plot.
const view = (svg) => svg.dataset.alone.split(' ').map(Number);
const alone = (svg) => {
  const copy = svg.cloneNode(true);
  const [style, paper] = ['style', 'rect'].map((name) => document.createElementNS(svg.namespaceURI, name));
  style.textContent = document.getElementById('plain-style').content.textContent;
  paper.setAttribute('class', 'paper');
  const [x, y, width, height] = view(svg);
  copy.setAttribute('viewBox', svg.dataset.alone);
  copy.removeAttribute('data-alone');
  for (const [name, number] of Object.entries({ x, y, width, height })) paper.setAttribute(name, number);
  for (const [name, number] of Object.entries({ width, height })) copy.setAttribute(name, number);
  copy.querySelector('desc').after(style, paper);
  return new XMLSerializer().serializeToString(copy);
};
const formats = {
  svg: async (svg) => new Blob([alone(svg)], { type: 'image/svg+xml' }),
  png: async (svg) => {
    const [, , width, height] = view(svg);
    const [image, canvas] = [new Image(), document.createElement('canvas')];
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    image.src = `data:image/svg+xml,${encodeURIComponent(alone(svg))}`;
    await image.decode();
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, 'image/png'));
  },
};
for (const figure of document.querySelectorAll('figure')) {
  const name = figure.id.replace(/-figure$/, '');
  const save = document.createElement('span');
  save.className = 'save';
  for (const [format, make] of Object.entries(formats)) {
    const button = document.createElement('button');
    button.textContent = format.toUpperCase();
    button.setAttribute('aria-label', `save ${name} as ${button.textContent}`);
    button.addEventListener('click', async () => {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(await make(figure.querySelector('svg')));
      link.download = `${name}.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
    save.append(button);
  }
  figure.prepend(save);
}
