"""The page itself: what stands where, and in which words."""

from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from minibert.report.style import STYLE
from minibert.report.wording import count, duration, percent

Cell = str | tuple[str, str]
"""Text, or text and what stands below it in small letters."""


class Table(NamedTuple):
    """A table under its caption; the first cell of a row names the row."""

    caption: str
    header: list[str]
    rows: list[list[Cell]]


def render(**parts: Any) -> str:
    """The whole document: style inside, no script, nothing to fetch; all text of `parts` is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"style": STYLE, "count": count, "duration": duration, "percent": percent}
    return environment.from_string(_PAGE).render(**parts)


_PAGE = """\
{% macro show(cell) %}
{% if cell is string %}{{ cell }}{% else %}{{ cell[0] }} <small>{{ cell[1] }}</small>{% endif %}
{% endmacro %}
{% macro table(table) %}
<p class="note">{{ table.caption }}</p>
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.caption }}"><table>
<thead><tr>{% for name in table.header %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
{% for row in table.rows %}
<tr><th scope="row">{{ show(row[0]) }}</th>{% for cell in row[1:] %}<td>{{ show(cell) }}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<header>
{% set tokens, masked = run.last("train", "tokens"), run.last("validation", "mlm_accuracy") %}
{% set pairs = run.last("validation", "nsp_accuracy") %}
<h1>{{ title }}</h1>
<p class="lead">
{% if model %}A BERT encoder of {{ model.num_hidden_layers }} layers, {{ model.hidden_size }} wide,
with {{ count(parameters) }} parameters{% else %}An encoder{% endif %},
trained from random weights for {{ "{:,}".format(run.step) }} steps
{%- if tokens %} ({{ count(tokens) }} tokens in {{ duration(run.seconds) }}){% endif %}.
{% if masked is not none %}On documents that it has never seen it finds {{ percent(masked) }} of the masked tokens
{%- if pairs is not none %}, and tells a next sentence from a random one in {{ percent(pairs) }} of the cases, where
guessing gives 50%{% endif %}.{% endif %}</p>
{% if run.step < (run.steps or 0) %}
<p class="warning">This run is not finished: {{ "{:,} of {:,}".format(run.step, run.steps) }} steps are done.</p>
{% endif %}
{% for sentence in findings[:1] %}<p>{{ sentence }}</p>{% endfor %}
<dl class="numbers">
{% for name, value in numbers.items() %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}
</dl>
<nav aria-label="Sections">
<a href="#done">What was done</a> <a href="#curves">How it went</a> <a href="#validation">Validation</a>
{% if finetuning %}<a href="#finetuning">Fine-tuning</a>{% endif %}
<a href="#masks">Filled masks</a>{% if examples %} <a href="#attention">Who looks at whom</a>{% endif %}
</nav>
</header>
<main>

<section aria-labelledby="done">
<h2 id="done">What was done</h2>
<div class="grid">
{% for group, facts in facts.items() %}
<table class="facts">
<caption>{{ group }}</caption>
{% for name, fact in facts.items() %}<tr><th scope="row">{{ name }}</th><td>{{ fact }}</td></tr>{% endfor %}
</table>
{% endfor %}
</div>
{% if not run.corpus %}<p class="note">The corpus is not where the run found it.</p>{% endif %}
{% for text in run.corpus.get("warnings", ()) %}<p class="warning">{{ text[:1]|upper }}{{ text[1:] }}.</p>{% endfor %}
{% set command = run.environment.get("command") %}
{% if command %}<details><summary>The command</summary><pre>{{ command|join(" ") }}</pre></details>{% endif %}
</section>

<section aria-labelledby="curves">
<h2 id="curves">How it went</h2>
<p class="note">{% if curves %}All curves are over the steps (optimizer updates). Long ones are drawn as means of
neighbouring points, within the band of their extremes.{% else %}No step has been written down yet.{% endif %}</p>
<div class="grid curves">
{% for curve in curves %}
<figure><figcaption><b>{{ curve.title }}.</b> {{ curve.caption }}</figcaption>{{ curve.picture }}</figure>
{% endfor %}
</div>
</section>

<section aria-labelledby="validation">
<h2 id="validation">Validation</h2>
{% if validation.rows %}{{ table(validation) }}{% else %}<p>The run has not been evaluated yet.</p>{% endif %}
</section>

{% if finetuning %}
<section aria-labelledby="finetuning">
<h2 id="finetuning">Fine-tuning</h2>
{% for path, result in finetuning.items() if not result %}
<p class="warning">{{ path }} is not finished: it has no results.json.</p>
{% endfor %}
{% for task in tasks %}
<h3>Task {{ task.name }}</h3>
<div class="grid">
<ul>
{% for sentence in task.findings %}<li>{{ sentence }}</li>{% else %}
<li>No two runs can be compared: that needs one from random weights, with equal method and metric.</li>
{% endfor %}
</ul>
<figure><figcaption><b>{{ task.measure[:1]|upper }}{{ task.measure[1:] }} of each seed.</b> A dot is a seed, the tick
their mean, the pale bar one standard deviation to either side; grey dots began with random weights.</figcaption>
{{ task.picture }}</figure>
</div>
{{ table(task.table) }}
{% endfor %}
</section>
{% endif %}

<section aria-labelledby="masks">
<h2 id="masks">Filled masks</h2>
{% if not examples %}
<p>There is no checkpoint yet that could fill them.</p>
{% elif not examples.masks %}
<p>The vocabulary lacks characters of these sentences; give others with --sentences.</p>
{% else %}
<p class="note">The five tokens that the model finds most probable at the mask. All bars have one scale, on which the
longest is {{ percent(examples.longest) }}. The sentences were written for this page, not taken from the text.</p>
<div class="grid thirds">
{% for sentence, masks in examples.masks %}
<div><blockquote>{{ sentence|e|replace("[MASK]", "<mark>[MASK]</mark>"|safe) }}</blockquote>
{% for words in masks %}
<table class="words" aria-label="Candidates for mask {{ loop.index }} of: {{ sentence }}">
{% for word in words %}
<tr><th scope="row">{{ word.token }}</th>
<td><span class="bar" style="width:{{ percent(word.probability / examples.longest) }}"></span></td>
<td>{{ percent(word.probability) }}</td></tr>
{% endfor %}
</table>
{% endfor %}
</div>
{% endfor %}
</div>
{% endif %}
</section>

{% if examples %}
{% set seen = examples.attention %}
<section aria-labelledby="attention">
<h2 id="attention">Who looks at whom</h2>
<div class="grid">
<table class="map" aria-label="Attention of layer {{ seen.layer }}, head {{ seen.head }}: {{ seen.pair|join(" ") }}">
<tr><td></td>{% for token in seen.tokens %}<th scope="col"><span>{{ token }}</span></th>{% endfor %}</tr>
{% for looking, weights in seen.rows %}
<tr><th scope="row">{{ looking }}</th>
{% for weight in weights %}
<td title="{{ looking }} → {{ seen.tokens[loop.index0] }}: {{ percent(weight) }}"
><i style="opacity:{{ (weight / seen.strongest)|round(2) }}"></i></td>
{% endfor %}
</tr>
{% endfor %}
</table>
<div class="note">
<p>Each row is a token that looks, each column a token that it looks at: the stronger the colour, the larger the weight.
The weights of a row sum to 100%; the strongest square is {{ percent(seen.strongest) }}.</p>
<p>A coloured diagonal means that tokens look at themselves, one beside it that they look at a neighbour, a coloured
column that all look at one token. Off the two diagonal blocks are looks into the other sentence.</p>
<p>Shown is head {{ seen.head }} of layer {{ seen.layer }}, which of all {{ seen.heads }} heads looks most sharply at
single words (by the mean over words of the largest weight on a word). A weight says where a head looks, not why the
model decides as it does.</p>
</div>
</div>
</section>
{% endif %}

</main>
</body>
</html>
"""
