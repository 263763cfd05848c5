"use strict";
// Improves a page that is complete without it: tables sort and filter, pictures enlarge. It fetches and stores nothing.
(() => {
  const text = (cell) => cell.textContent.trim();
  const key = (cell) => {
    if (!cell) return null;
    const marked = cell.dataset.sort ?? cell.querySelector("data")?.value;
    if (marked !== undefined && marked !== "") return Number(marked);
    return cell.querySelector(".none, .unavailable") ? null : text(cell).toLowerCase();
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  const sort = (table, column, heading) => {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({ row, place, key: key(row.cells[column]) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
      return (descending ? -1 : 1) * compare(a.key, b.key) || a.place - b.place;
    });
    for (const { row } of rows) { row.classList.remove("same"); body.append(row); }
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };

  const sortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (heading.classList.contains("plainhead")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, column, heading));
      heading.append(button);
    });
  };

  const filterable = (table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 12) return;
    const field = document.createElement("input");
    field.type = "search";
    const count = document.createElement("output");
    const label = document.createElement("label");
    label.className = "filter";
    label.append("Filter rows ", field, count);
    const apply = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${rows.length}`;
    };
    field.addEventListener("input", apply);
    (table.closest(".scroll") ?? table).before(label);
    apply();
  };

  const viewer = () => {
    const dialog = document.createElement("dialog");
    dialog.className = "viewer";
    dialog.setAttribute("aria-label", "Enlarged picture");
    const picture = document.createElement("img");
    const words = document.createElement("p");
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.append(picture, words, close);
    document.body.append(dialog);
    return (image) => {
      picture.src = image.src;
      picture.alt = image.alt;
      words.textContent = image.alt;
      dialog.showModal();
    };
  };

  const enlargeable = (images) => {
    if (!images.length) return;
    const show = viewer();
    for (const image of images) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "enlarge";
      button.title = "Enlarge";
      image.replaceWith(button);
      button.append(image);
      button.addEventListener("click", () => show(image));
    }
  };

  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target && target.closest("details");
    if (fold && !fold.open) { fold.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table.long").forEach(filterable);
  enlargeable([...document.querySelectorAll("figure.gallery img, .thumbs img")]);
})();
