"""How the page looks: system fonts, one accent colour, light and dark, on a phone and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: light-dark(#fcfcfa, #15181b); --ink: light-dark(#1c2024, #e6e8ea); --soft: light-dark(#5d656e, #a5adb5);
  --line: light-dark(#e2e3df, #30363c); --mute: light-dark(#8b939c, #7c858e);
  --accent: light-dark(#0a6a92, #63bfe6); --tint: light-dark(#e8f2f6, #1b303b);
  --warn: light-dark(#8a4b08, #eeb672); --warn-tint: light-dark(#fbf1e3, #33281a);
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif;
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: clamp(1.25rem, 5vw, 4rem) clamp(1rem, 4vw, 2.5rem) 4rem; max-width: 66rem;
  background: var(--page); color: var(--ink); font: 1rem/1.6 var(--font); font-variant-numeric: tabular-nums; }
h1 { margin: 0 0 .5em; font-size: clamp(1.7rem, 4.5vw, 2.4rem); line-height: 1.15; letter-spacing: -.02em;
  text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.35rem; line-height: 1.25; letter-spacing: -.01em; }
h3 { margin: 2rem 0 .5rem; font-size: 1.05rem; }
p, ul { max-width: 42rem; margin: 0 0 1rem; text-wrap: pretty; }
ul { padding-left: 1.2rem; } li { margin-bottom: .5rem; } li::marker { color: var(--mute); }
section { margin-top: 3.5rem; padding-top: 1.75rem; border-top: 1px solid var(--line); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.4rem; margin-top: 1.75rem; font-size: .925rem; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
summary { cursor: pointer; color: var(--accent); font-size: .925rem; } details { margin-top: 1.25rem; }
pre { overflow: auto; font: .875em/1.5 ui-monospace, Menlo, Consolas, monospace; }
.lead { font-size: 1.15rem; line-height: 1.55; } .note { color: var(--soft); font-size: .925rem; }
.warning { padding: .7rem 1rem; border-left: 3px solid var(--warn); background: var(--warn-tint); }

.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1.25rem 1.5rem;
  margin: 2rem 0 0; }
.numbers div { border-top: 2px solid var(--accent); padding-top: .6rem; }
.numbers dt { color: var(--soft); font-size: .85rem; line-height: 1.35; }
.numbers dd { margin: 0; font-size: 1.7rem; line-height: 1.25; font-weight: 600; letter-spacing: -.02em; }

.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--column, 22rem)), 1fr));
  gap: 2rem 2.5rem; align-items: start; margin-top: 1.5rem; }
.curves { align-items: stretch; }
figure { margin: 0; display: flex; flex-direction: column; justify-content: space-between; }
figcaption { color: var(--soft); font-size: .875rem; line-height: 1.5; margin-bottom: .5rem; }
figcaption b { color: var(--ink); font-size: .95rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; stroke-linejoin: round; }

.grid + .note { margin-top: 1.75rem; }
.scroll { overflow: auto; max-height: 31rem; margin: .5rem 0 1.5rem; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; line-height: 1.45; }
th, td { padding: .4rem 0 .4rem 1.25rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-weight: 500; }
th:first-child { padding-left: 0; text-align: left; } td { font-weight: 400; }
thead th { position: sticky; top: 0; background: var(--page); color: var(--soft); vertical-align: bottom;
  white-space: normal; }
small { display: block; color: var(--soft); font-size: .8rem; font-weight: 400; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts th { color: var(--soft); font-weight: 400; width: 9.5rem; }
.facts caption { padding-bottom: .5rem; text-align: left; font-weight: 700; font-size: .95rem; }

.thirds { --column: 17rem; }
blockquote { margin: 0; line-height: 1.45; text-wrap: balance; }
@media (min-width: 40rem) { blockquote { min-height: 2.9em; } }
mark { background: var(--tint); color: var(--accent); border-radius: .25em; padding: .05em .3em; font-weight: 600; }
.words { margin-top: .5rem; font-size: .875rem; table-layout: fixed; }
.words th, .words td { border: 0; padding: .16rem 0 .16rem .6rem; vertical-align: middle; }
.words th { width: 34%; padding-left: 0; overflow: hidden; text-overflow: ellipsis; }
.words td:last-child { width: 3.6rem; color: var(--soft); }
.bar { display: block; height: .6rem; min-width: 1px; border-radius: .15rem; background: var(--accent); }

.map { table-layout: fixed; max-width: 32rem; color: var(--soft); font-size: .75rem; line-height: 1; }
.map th { padding: 0 .5rem 0 0; border: 0; font-weight: 400; text-align: right; vertical-align: middle; }
.map th[scope=col] { padding: 0 0 .4rem; text-align: center; vertical-align: bottom; }
.map th span { writing-mode: vertical-rl; transform: rotate(180deg); }
.map td { padding: 0; border: 1px solid var(--line); } .map tr > :first-child { width: 5rem; border: 0; }
.map i { display: block; aspect-ratio: 1; background: var(--accent); }

@media print {
  :root { color-scheme: light; --page: #fff; } .grid { --column: 15rem; }
  body { max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; } section { margin-top: 1.5rem; padding-top: 1rem; } h2, h3 { break-after: avoid; }
  figure, tr, .grid > * { break-inside: avoid; } .scroll { max-height: none; overflow: visible; }
}
"""
