// The page: header, tabs, routing by hash, messages, and the sheet of an item. A tab is a module with a function
// `mount(root, app)`, which returns {show(params), hide()}; params are the URLSearchParams of the hash.

import * as api from "./api.js";
import { card, counted, element } from "./cards.js";
import { openSheet } from "./sheet.js";

const MODULES = { find: "./find.js", map: "./map_tab.js", review: "./review.js" };
const RETRY = 700; // milliseconds, while the catalog is loaded

const find = (selector) => document.querySelector(selector);
const tabs = {}; // name -> {root, ready: promise of {show, hide}}
let current = null;

const app = {
  api,
  status: null,
  // Return a hash such as "#find?id=a"; empty values are left out.
  hash: (tab, params) => `#${tab}${api.query(params)}`,
  // Go to a hash, with a new entry in the history unless `replace` is set.
  go(hash, { replace = false } = {}) {
    const target = hash.startsWith("#") ? hash : `#${hash}`;
    if (target === location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", target);
    route();
  },
  // Tell screen readers.
  say(text) {
    find(".live").textContent = text;
  },
  // Show an error, or nothing.
  fail(error) {
    find(".banner").hidden = !error;
    find(".banner p").textContent = error ? error.message : "";
  },
  card: (item, options = {}) => card(item, { onOpen: () => app.openItem(item.id), ...options }),
  openItem: (id) => openSheet(find(".sheet"), app, id),
};

// Return the tab and its parameters that the hash names.
function place() {
  const [tab, params = ""] = location.hash.slice(1).split(/\?(.*)/s);
  return [tab in MODULES ? tab : "find", new URLSearchParams(params)];
}

function mounted(name) {
  if (!tabs[name]) {
    const root = element("section", `tab ${name}`);
    root.setAttribute("aria-label", name[0].toUpperCase() + name.slice(1));
    root.hidden = true;
    find("main").append(root);
    const missing = (error) => {
      root.replaceChildren(element("p", "loading", `This view cannot be shown: ${error.message}`));
      return { show() {}, hide() {} };
    };
    tabs[name] = { root, ready: import(MODULES[name]).then((module) => module.mount(root, app)).catch(missing) };
  }
  return tabs[name];
}

async function route() {
  const [name, params] = place();
  app.fail(null);
  find(".sheet").close();
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const tab = mounted(name);
  if (current && current !== tab) {
    current.root.hidden = true;
    current.ready.then((view) => view.hide());
  }
  current = tab;
  tab.root.hidden = false;
  document.title = `${tab.root.getAttribute("aria-label")} – ${catalogName()}`;
  const view = await tab.ready;
  if (current === tab) view.show(params);
}

// Return the name of the catalog: the last part of its address.
function catalogName() {
  return app.status.address.split(/[/#\\]/).filter(Boolean).at(-1) ?? "Catalog";
}

function head() {
  const { items, products, model, address } = app.status;
  find("h1 bdi").textContent = catalogName();
  find("h1").title = address;
  const parts = [counted(items, "item", "items"), counted(products, "product", "products")];
  find(".about").replaceChildren(parts.join(" · "), element("span", "model", " · ", element("bdi", "", model.name), `, ${model.dim}-d`));
}

async function start() {
  find(".banner button").addEventListener("click", () => app.fail(null));
  find(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is the place in the page's history
    find("main").focus();
  });
  for (;;) {
    try {
      app.status = await api.get("status");
      break;
    } catch (error) {
      find(".loading").textContent = error.status === 503 ? "Loading the catalog …" : error.message;
      if (error.status !== 503 && error.status !== 0) return;
      await new Promise((done) => setTimeout(done, RETRY));
    }
  }
  find(".loading").remove();
  head();
  mounted("find"); // takes dropped and pasted photos on every tab
  window.addEventListener("hashchange", route);
  window.addEventListener("popstate", route);
  route();
}

start();
