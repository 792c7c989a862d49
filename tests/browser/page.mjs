// Opens report pages in a real browser and looks at them: errors, requests, charts, sizes, time to the first paint,
// accessibility, exports. Usage: node page.mjs CHROMIUM SCREENSHOTS NAME=FILE:MOST_BYTES:KIND…
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, statSync } from "node:fs";
import { basename, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { AxeBuilder } from "@axe-core/playwright";
import { chromium } from "playwright-core";

const CHARTS = {
  comparison: ["completion", "held", "queue", "waiting", "utilisation", "fragmentation", "fairness", "jobs"],
  workload: ["arrivals", "day", "week", "gaps", "sizes", "durations", "load", "users"],
};
const CONTROLS = { comparison: comparisonControlsWork, workload: workloadControlsWork };
const SIZES = { phone: { width: 390, height: 844 }, laptop: { width: 1280, height: 800 } };
const MOST_PAINT_MS = 2000;
const MOST_READY_MS = 30_000;

const [executablePath, screenshots, ...pages] = process.argv.slice(2);
mkdirSync(screenshots, { recursive: true });
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
});

try {
  for (const page of pages) {
    const [, name, file, most, kind] = page.match(/^(\w+)=(.+):(\d+):(\w+)$/) ?? assert.fail(`not NAME=FILE:MOST_BYTES:KIND: ${page}`);
    assert.ok(kind in CHARTS, `no kind of page: ${kind}`);
    await look(name, resolve(file), Number(most), kind);
  }
} finally {
  await browser.close();
}

/** One page in every size and colour scheme. */
async function look(name, file, most, kind) {
  const { size } = statSync(file);
  assert.ok(size <= most, `${basename(file)} has ${size} bytes, more than ${most}`);
  for (const [device, viewport] of Object.entries(SIZES)) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport, colorScheme, acceptDownloads: true, offline: true });
      const seen = await open(context, file);
      const { page } = seen;
      await everyChartIsDrawn(page, CHARTS[kind]);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(wide <= 0, `${name} ${device}: the page is ${wide} px wider than the screen`);
      if (kind === "comparison") await theWholeTableIsSeen(page, `${name} ${device}`);
      if (colorScheme === "light") await chartsArePrinted(context, file, CHARTS[kind]);
      if (device === "laptop" && colorScheme === "light") {
        await CONTROLS[kind](page);
        await everyChartCanBeTakenAway(page, name, CHARTS[kind]);
      }
      await accessible(page, `${name} ${device} ${colorScheme}`);
      await page.screenshot({ path: `${screenshots}/${name}-${device}-${colorScheme}.png`, fullPage: true });
      assert.deepEqual(seen.troubles, [], `${name} ${device} ${colorScheme}`);
      const { paint, ready } = seen;
      console.log(`${name} ${device} ${colorScheme}: ${size} bytes, first paint ${paint} ms, all charts ${ready} ms`);
      await context.close();
    }
  }
}

async function open(context, file) {
  const page = await context.newPage();
  const troubles = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) troubles.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => troubles.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    troubles.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  const url = pathToFileURL(file).href;
  page.on("request", (request) => {
    if (request.url() !== url && !request.url().startsWith("blob:")) troubles.push(`request: ${request.url()}`);
  });
  await page.goto(url, { waitUntil: "commit" });
  await page.waitForSelector("html[data-ready=true]", { state: "attached", timeout: MOST_READY_MS });
  const ready = await page.evaluate(() => Math.round(performance.now()));
  const paint = await page.evaluate(() => {
    const first = performance.getEntriesByName("first-contentful-paint")[0];
    return first === undefined ? null : Math.round(first.startTime);
  });
  assert.ok(paint !== null && paint < MOST_PAINT_MS, `first contentful paint after ${paint} ms`);
  return { page, troubles, paint, ready };
}

/** There is something to see in each: shapes of its marks, with a size. */
async function everyChartIsDrawn(page, charts) {
  const drawn = await page.evaluate(() =>
    [...document.querySelectorAll(".chart")].map((section) => {
      const svg = section.querySelector(".plot svg");
      const shapes = svg?.querySelectorAll("path[d], rect, circle, line") ?? [];
      const broken = [...shapes].filter((shape) => /NaN|Infinity/.test(shape.outerHTML)).length;
      const area = (svg?.clientWidth ?? 0) * (svg?.clientHeight ?? 0);
      return { id: section.id, shapes: shapes.length, broken, area };
    }),
  );
  assert.deepEqual(drawn.map((chart) => chart.id), charts);
  for (const { id, shapes, broken, area } of drawn) {
    assert.ok(shapes >= 3 && area > 20_000, `${id}: ${shapes} shapes on ${area} px²`);
    assert.equal(broken, 0, `${id}: shapes without a place`);
  }
}

/** Nothing of the comparison has to be scrolled to. */
async function theWholeTableIsSeen(page, where) {
  const hidden = await page.locator("#comparison .scroll").evaluate((box) => box.scrollWidth - box.clientWidth);
  assert.ok(hidden <= 0, `${where}: ${hidden} px of the table are out of sight`);
}

/** With the keyboard, as one who has no mouse would: what is switched off in the legend is gone, and comes back. */
async function legendWorks(page, chart) {
  const drawn = `#${chart} .plot svg`;
  const before = await page.locator(drawn).innerHTML();
  await page.locator("#legend input").first().focus();
  await page.keyboard.press("Space");
  await page.waitForFunction(([svg, old]) => document.querySelector(svg).innerHTML !== old, [drawn, before]);
  await page.keyboard.press("Space");
  await page.waitForFunction(([svg, old]) => document.querySelector(svg).innerHTML === old, [drawn, before]);
}

/** Each policy has a colour of its own, and the one that is pointed at stands out in every chart. */
async function linesCanBeToldApart(page) {
  const colours = await page.evaluate(() => [...document.querySelectorAll("#legend line")].map((line) => getComputedStyle(line).stroke));
  assert.equal(new Set(colours).size, colours.length, `colours: ${colours.join(" ")}`);
  const marks = () =>
    page.evaluate(() => {
      const of = (state) => [...document.querySelectorAll(`#completion .plot ${state}`)].map((mark) => Number(mark.dataset.series));
      return { all: of("[data-series]"), ahead: of(".ahead"), behind: of(".behind") };
    });
  const { all } = await marks();
  assert.deepEqual(all.toSorted((a, b) => a - b), colours.map((_, one) => one), "each line is known by its policy");
  await page.locator("#legend label").last().hover();
  const pointed = await marks();
  assert.deepEqual(pointed.ahead, [colours.length - 1]);
  assert.equal(pointed.behind.length, colours.length - 1);
  await page.locator("h1").hover();
  assert.deepEqual((await marks()).ahead, [], "nothing is pointed at any more");
  await page.locator("#completion .plot svg").scrollIntoViewIfNeeded();
  // Where a line ends there is a job, however few there are.
  const end = await page.evaluate(() => {
    const line = document.querySelector("#completion .plot path[data-series]");
    const { x, y } = line.getPointAtLength(line.getTotalLength()).matrixTransform(line.getScreenCTM());
    return { x, y };
  });
  await page.mouse.move(end.x - 1, end.y + 1);
  await page.waitForFunction(() => document.querySelectorAll("#completion .plot .ahead").length === 1);
  await page.mouse.move(0, 0);
}

/** Whoever jumps to a section sees its heading, not the bar above it. */
async function headingsAreSeen(page) {
  for (const id of ["queue", "fairness"]) {
    await page.evaluate((id) => document.getElementById(id).scrollIntoView(), id);
    const [heading, bar] = await page.evaluate((id) => {
      const bar = document.getElementById("legend");
      const covers = getComputedStyle(bar).position === "sticky" ? bar.getBoundingClientRect().bottom : 0;
      return [document.querySelector(`#${id} h2`).getBoundingClientRect().top, covers];
    }, id);
    assert.ok(heading >= bar - 1, `${id}: its heading at ${heading} px is below the bar, which ends at ${bar} px`);
  }
  await page.evaluate(() => scrollTo(0, 0));
}

/** Printing takes a page as it is, also one that has not drawn anything yet. */
async function chartsArePrinted(context, file, charts) {
  const page = await context.newPage();
  await page.addInitScript(() => (window.requestAnimationFrame = () => 0));
  await page.goto(pathToFileURL(file).href);
  assert.equal(await page.locator(".plot svg").count(), 0, "nothing is drawn before");
  await page.emulateMedia({ media: "print" });
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await everyChartIsDrawn(page, charts);
  await page.close();
}

async function themeWorks(page) {
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const [light, button] = [await paper(), page.locator("#theme")];
  await button.press("Enter");
  await button.press("Enter");
  assert.notEqual(await paper(), light, "the theme can be chosen");
  await button.press("Enter");
  assert.equal(await paper(), light);
}

/** Of one workload alone there is nothing to switch off. */
async function workloadControlsWork(page) {
  if ((await page.locator("#legend").count()) > 0) await legendWorks(page, "durations");
  await themeWorks(page);
}

async function comparisonControlsWork(page) {
  await legendWorks(page, "completion");
  await linesCanBeToldApart(page);
  await headingsAreSeen(page);
  const across = page.locator("#jobs select").first();
  const last = (await across.locator("option").count()) - 1;
  // Of two policies only one pair can be set against each other, so there is nothing else to choose.
  if (last > 1) {
    const table = await page.locator("#worst").innerHTML();
    await across.selectOption({ index: last });
    await page.waitForFunction((old) => document.querySelector("#worst").innerHTML !== old, table);
    await across.selectOption({ index: 0 });
  }
  const views = page.locator("#held select").nth(1);
  for (let view = (await views.locator("option").count()) - 1; view >= 0; view -= 1) {
    await views.selectOption({ index: view });
    assert.ok((await page.locator("#held .plot svg path, #held .plot svg rect").count()) > 0, `view ${view}`);
  }
  await themeWorks(page);
}

async function everyChartCanBeTakenAway(page, name, charts) {
  for (const chart of charts) {
    for (const kind of ["svg", "csv"]) {
      const coming = page.waitForEvent("download");
      await page.locator(`#${chart} button[data-export=${kind}]`).click();
      const text = readFileSync(await (await coming).path(), "utf8");
      // Chromium drops downloads that come faster than ten a second.
      await page.waitForTimeout(120);
      if (kind === "svg") {
        assert.match(text, /^<svg [^>]*xmlns="http:\/\/www.w3.org\/2000\/svg"/, `${name} ${chart}`);
        assert.doesNotMatch(text, /var\(--[cs]\d|NaN/, `${name} ${chart}: colours are spelled out`);
        const sound = await page.evaluate((svg) => {
          const parsed = new DOMParser().parseFromString(svg, "image/svg+xml");
          return parsed.querySelector("parsererror") === null;
        }, text);
        assert.ok(sound, `${name} ${chart}: the SVG is well-formed`);
      } else {
        const lines = text.trimEnd().split("\n");
        assert.ok(lines.length > 1, `${name} ${chart}: the CSV has rows`);
        assert.match(lines[0], /^[a-z_]+,/, `${name} ${chart}`);
      }
    }
  }
}

async function accessible(page, what) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  const told = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  assert.deepEqual(told, [], `${what}: accessibility`);
}
