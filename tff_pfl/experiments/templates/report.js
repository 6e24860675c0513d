'use strict';
// Shows the rows of one way to personalize, or all.
for (const select of document.querySelectorAll('select.variants')) {
  const show = () => {
    const rows = document.querySelectorAll(`#${select.dataset.rows} tbody tr`);
    for (const row of rows) {
      row.hidden = select.value !== '' && row.dataset.variant !== select.value;
    }
  };
  select.addEventListener('change', show);
  // A browser keeps the choice when a page is loaded again.
  show();
}
// Tables of class "sortable": a click on the head of a column sorts the rows by
// their cells' data-sort; cells without it come last.
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector('button').addEventListener('click', () => {
      const now = head.getAttribute('aria-sort');
      const next = now === 'ascending' ? 'descending'
        : now === 'descending' ? 'ascending' : head.dataset.first;
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', next);
      const sign = next === 'ascending' ? 1 : -1;
      const key = (row) => row.cells[column].dataset.sort;
      const compare = (a, b) => {
        if (key(a) === undefined || key(b) === undefined) {
          return (key(a) === undefined) - (key(b) === undefined);
        }
        return sign * (head.dataset.kind === 'text'
          ? key(a).localeCompare(key(b)) : key(a) - key(b));
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    });
  });
}
