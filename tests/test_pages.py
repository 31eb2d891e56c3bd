"""The Python on the first pages runs, in order, and prints what stands below it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import yaml
from api_pages import MODULES, api_pages, public_names, uri_of
from page_code import PageError, run_page
from paper_tables import PAGES, SENTENCES, example, unfounded, written
from site_pages import MOVED, is_made

from momentgen.extras import SITE
from momentgen.generated import gelu

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "docs/networks.md", "docs/ops.md", "docs/tutorials/measured-formula.md"])
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "```python" in page
    run_page(page, name)


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        goal = page.parent / target if target else page
        assert goal.exists(), f"{page.name}: no {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", goal.read_text(encoding="utf-8"), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: no heading {anchor} in {goal.name}"


def result(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_figures_of_the_first_page_are_those_of_the_results() -> None:
    cells = result("benchmarks/results/answers.json")["cells"].values()
    elsewhere = result("benchmarks/results/answers_elsewhere.json")["cells"].values()
    adf = result("examples/results/adf_time.json")["microseconds"]["regression, 8-50-50-1"]
    gpu = result("benchmarks/results/gpu_ops.json")["results"]
    assert {(row["differing"], row["compared"]) for row in gpu} == {(0, gpu[0]["compared"])}
    gains, costs = ([cell["controlled"][what] for cell in cells] for what in ("gain", "cost"))
    ap2 = [cell["ap2"]["cost"] for cell in cells]
    gains_elsewhere = [cell["gain"] for cell in elsewhere if "gain" in cell]
    small = result("benchmarks/results/small_networks.json")["networks"].values()
    assert max(row["after"]["plain_us"] for row in small) < 1000
    short, most = [row["after"]["cost"] for row in small], max(cell["cost"] for cell in elsewhere)
    passes = [row["passes"] for row in result("benchmarks/results/formulas.json")["rows"].values()]
    said = [
        f"{min(passes):.0f} to {max(passes):.0f} calls",
        f"{min(gains):.1f} to {float(f'{max(gains):.2g}'):,.0f} times as long to the same error, "
        f"{median(gains):.0f} times in the median",
        f"other people wrote it takes {min(gains_elsewhere):.1f} to "
        f"{float(f'{max(gains_elsewhere):.2g}'):,.0f} times as long, {median(gains_elsewhere):.1f} times in the median",
        f"costs up to {float(f'{most:.2g}'):,.0f} forward passes",
        f"costs {min(short):.0f} to {float(f'{max(short):.2g}'):.0f} forward passes",
        f"{min(costs):.0f} to {float(f'{max(costs):.2g}'):.0f} forward passes",
        f"{min(ap2):.0f} to {max(ap2):.0f} forward passes",
        f"{adf['filter, pbp, float64']:.0f} µs per example and pass (8-50-50-1)",
        f"all {len(gpu)} Triton kernels matched the CPU bit for bit on {gpu[0]['compared']:,} inputs each",
        f"10,000 forward passes | σ within {100 / (2 * 10_000) ** 0.5:.1f} %",
    ]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [text for text in said if text not in page] == []
    tail = gelu(torch.tensor(-4.5), torch.tensor(0.18**2))
    assert "`gelu` at mean −4.5 and σ 0.18 has σ 0" in page
    assert tail.std.item() == 0
    # No other figure stands on the page: what is left are settings, versions and names.
    for text in said:
        page = page.replace(text, "")
    words = re.sub(r"^```.*?^```|^    .*?$|`[^`]*`|\]\([^)]*\)", "", page, flags=re.S | re.M)
    settings = (
        "σ 0.1 on",
        "mean −4.5 and σ 0.18 has σ 0.",
        "float32",
        "x86-64",
        "3.11",
        "H200",
        "torch 2.13,  on 2.14.",
    )
    for text in settings:
        words = words.replace(text, "")
    assert re.findall(r"[^\n]*\d[^\n]*", words) == []


@pytest.mark.parametrize("name", [*SENTENCES, "papers"])
def test_the_figures_of_the_papers_pages_are_in_the_files_that_they_cite(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert written(page) == page, "python docs/hooks/paper_tables.py writes the tables anew"
    assert [part for part in SENTENCES.get(name, list)() if part not in page] == []
    assert unfounded(name) == []


def test_the_figures_of_the_page_on_networks_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    off = [row["eps_mu_exact"][-1] for row in result("examples/results/lenet_mnist.json")["table2"].values()]
    assert written(page) == page
    assert f"off by {min(off):.2f} to {max(off):.2f} σ" in page


def test_the_memory_of_a_vit_is_that_of_the_result() -> None:
    four, one = result("benchmarks/results/memory.json")["cells"].values()
    held = [f"{row[name] / 1e6:.0f}" for name in ("32 rows", "plain") for row in (four, one)]
    said = "holds {} MB, for one {} MB; plain passes hold {} and {} MB".format(*held)
    assert said in (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")


def test_the_page_on_accuracy_has_the_rules_that_have_bounds() -> None:
    certificates = [path for path in (ROOT / "generated").glob("*/*.json") if path.name != "manifest.json"]
    rules = {path.parent.name for path in certificates if json.loads(path.read_text(encoding="utf-8"))["bounds"]}
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./generated/(\w+)\)", page)) == rules


def test_each_item_of_the_papers_names_its_file_its_reason_and_a_command_that_its_script_takes() -> None:
    papers = example("papers")
    assert papers.ITEMS.keys() == papers.PAPERS.keys()
    for item in (item for items in papers.ITEMS.values() for item in items):
        assert all(item.cells()[place] for place in (0, 2, 3, 4)), item.title
        assert bool(item.run.name) is bool(item.run.command)
        assert not item.ours or item.run.content or not item.file or (papers.RESULTS / item.file).exists(), item.title
        for line in papers.commands(item.run.name, Path("DIR"), []) if item.run.name else ():
            text = Path(line[1]).read_text(encoding="utf-8")
            options = [part.removeprefix("--") for part in line if part.startswith("--")]
            assert [word for word in options if f'"--{word}"' not in text and word.replace("-", "_") not in text] == []
    with pytest.raises(SystemExit, match="no item 'x'"):
        papers.commands("x", None, [])


def test_the_table_of_newcomers_is_that_of_the_result() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    for who, found in result("benchmarks/results/newcomers.json")["found"].items():
        install, read, copy, run = found["steps"]
        cells = [
            who,
            f"`{install['step'].removeprefix('pip install ')}`, {install['seconds']:.0f} s",
            f"{read['words']:,} words",
            f"{copy['lines']} lines",
            f"{run['seconds']:.0f} s",
            found["right"],
        ]
        assert f"| {' | '.join(cells)} |\n" in page


def test_the_page_on_installing_has_the_figures_of_the_result() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    found = result("benchmarks/results/install.json")["found"]["3.11.7, torch for the CPU"]
    install, code = (found[name]["processor seconds"] for name in ("install after the download", "README's code"))
    assert f"takes {install} s of processor time, and README's first code {code} s" in page
    install, code = (found[name]["seconds"] for name in ("install after the download", "README's code"))
    assert f"clock of a busy machine they take {install} s and {code} s" in page
    compiling = found["of it byte-compiling"]
    of_torch, *others, own = (f"{compiling[name]} s" for name in ("torch", "sympy", "numpy", "momentgen"))
    assert f"{of_torch} of it for torch, {others[0]} for sympy, {others[1]} for numpy and {own} for momentgen" in page


def test_the_picture_of_the_first_page_is_drawn_from_the_results(tmp_path: Path) -> None:
    script, picture = ROOT / "benchmarks" / "first_page.py", tmp_path / "first_page.svg"
    subprocess.run([sys.executable, str(script), "--out", str(picture)], check=True, timeout=120)
    drawn = re.findall(r'<path d="[^"]*"', (ROOT / "docs" / "first_page.svg").read_text(encoding="utf-8"))
    assert re.findall(r'<path d="[^"]*"', picture.read_text(encoding="utf-8")) == drawn


def test_pages_and_workflows_name_targets_and_scripts_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    wrong = []
    for page in sorted(pages):
        if page.name == "history.md":
            continue
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r"(?:^    |`|run: )make ((?:[a-z-]+ ?)+)", text, flags=re.M)
        wrong += [f"{page.name}: make {name}" for names in asked for name in names.split() if name not in known]
        named = re.findall(r"`((?:benchmarks|examples|tests|momentgen|\.github|\.ci)/[\w./-]*\w)`", text)
        wrong += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
    assert wrong == []


# The site: every page is in its navigation, every public name in its reference, and code that fails is refused.
def test_every_page_is_in_the_navigation() -> None:
    # The tag names a function of pymdownx, which this test does not need.
    yaml.SafeLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named, written = set(pages(nav)), {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert written <= named
    assert {name for name in named - written if not is_made(name)} <= set(MOVED.values())


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for inside in (nav.values() if isinstance(nav, dict) else nav) for page in pages(inside)]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry(module: str) -> None:
    for name in public_names(module):
        page = api_pages()[uri_of(module, name)]
        entry, row = f"::: {module}.{name}\n", f'<a id="{module}.{name}"></a>'
        assert page.count(entry) + page.count(row) == 1


def test_what_a_page_prints_is_inserted() -> None:
    assert run_page("```python\nprint(6 * 7)\n```\n", "page").endswith("```text\n42\n```\n")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```python\n1 / 0\n```\n", "page:1: ZeroDivisionError"),
        ("\n```python\nprint(2)\n```\n\n```text\n3\n```\n", "page:2: the page has"),
        ("```console\n$ exit 3\n```\n", "exit code 3"),
    ],
)
def test_code_that_fails_or_prints_other_numbers_is_refused(page: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        run_page(page, "page")


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}  # as `make docs`
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = {str(page.relative_to(tmp_path)): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    for module in MODULES:
        for name in public_names(module):
            assert f'id="{module}.{name}"' in html[uri_of(module, name).replace(".md", "/index.html")]
    assert f'<link rel="canonical" href="{SITE}/networks/">' in html["networks/index.html"]
    texts = {name: re.sub(r"<script.*?</script>|<[^>]+>", " ", text, flags=re.S) for name, text in html.items()}
    assert [name for name, text in texts.items() if len(text.split()) > 10_000 and "history" not in name] == []
