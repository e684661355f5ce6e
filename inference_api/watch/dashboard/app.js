// The page: which view is shown, and the poll that feeds all of them.

import { ApiError, getJson } from "./api.js";
import { hasCluster, showCluster } from "./cluster.js";
import { byId } from "./dom.js";
import { showHowMany } from "./how_many.js";
import { showOptimizer } from "./optimizer.js";
import { offerModels } from "./playground.js";
import { poll } from "./poll.js";
import { setPhase, showServer } from "./serving.js";
import { showWeights } from "./weights.js";

const PERIOD_MS = 1000;
const VIEWS = {
  serving: () => {},
  optimizer: showPlans,
  weights: showSearches,
  ...(hasCluster && { cluster: showCluster }),
};
const links = [...document.querySelectorAll("nav a")];

function showView() {
  const [wanted, ...rest] = location.hash.slice(1).split("/");
  if (wanted === "content") return; // where the skip link leads, in any view
  const name = wanted in VIEWS ? wanted : "serving";
  for (const each of Object.keys(VIEWS)) byId(`view-${each}`, HTMLElement).hidden = each !== name;
  for (const link of links) {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title =
    name === "serving" ? "Hearth" : `${name[0].toUpperCase()}${name.slice(1)} · Hearth`;
  VIEWS[name](decodeURIComponent(rest.join("/")));
}

function showPlans() {
  showOptimizer();
  showHowMany();
}

function showSearches(sessionId) {
  showWeights(sessionId);
}

async function refresh() {
  const state = await getJson("/dashboard/state");
  const { models, has_router } = state.server;
  offerModels(has_router && models.length ? [...models, "auto"] : models);
  await showServer(state);
}

function onFailure(error) {
  const isAnswer = error instanceof ApiError;
  setPhase(
    isAnswer ? "error" : "unreachable",
    isAnswer ? error.message : "The server does not answer. Retrying.",
  );
}

addEventListener("hashchange", showView);
showView();
poll(refresh, PERIOD_MS, onFailure);
