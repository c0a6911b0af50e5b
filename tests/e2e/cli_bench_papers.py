"""`bench papers`: every table, row and number is there, deviations are what they say, and all are within their bounds."""

import functools
import json
import math
import os

import program
from program import script_test

# The rows and the columns of each table.
TABLES = {"zero_memory": (18, 3), "zero_largest": (4, 1), "zero_traffic": (4, 1), "infinity_memory": (5, 2),
          "infinity_working": (5, 3), "infinity_intensity": (3, 3), "infinity_efficiency": (3, 1), "least_bytes": (10, 2), "runs": (7, 1), "ratios": (2, 1)}
MACHINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "machines")
TABLE_FIELDS = {"name", "title", "source", "unit", "rows"}
NUMBER_FIELDS = {"column", "printed", "paper", "ours", "deviation", "least_deviation", "most_deviation", "within"}
PREDICTED = -2  # the tables from here on are those of --machines
SIZES = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}


def wrong_number(what, number):
    bounds = number.pop("low", number["ours"]), number.pop("high", number["ours"])
    if number.keys() != NUMBER_FIELDS:
        return [f"{what}: the fields are {sorted(number)}"]
    deviation = number["ours"] / number["paper"] - 1
    bounded = number["least_deviation"] <= deviation <= number["most_deviation"]
    right = math.isclose(deviation, number["deviation"], rel_tol=1e-9, abs_tol=1e-12)
    known = 0 < bounds[0] <= number["ours"] <= bounds[1]
    return [] if right and bounded and known and number["within"] is True else [f"{what}: {number}"]


def wrong_table(table):
    name = table["name"]
    rows, columns = TABLES.get(name, (0, 0))
    problems = [] if table.keys() == TABLE_FIELDS else [f"{name}: the fields are {sorted(table)}"]
    problems += [] if len(table["rows"]) == rows else [f"{name} has {len(table['rows'])} rows"]
    problems += [] if len({row["name"] for row in table["rows"]}) == rows else [f"{name}: names of rows repeat"]
    for row in table["rows"]:
        what = f"{name}, {row['name']}"
        problems += [] if len(row["numbers"]) == columns else [f"{what} has {len(row['numbers'])} numbers"]
        problems += [problem for number in row["numbers"] for problem in wrong_number(what, number)]
    return problems


@functools.cache
def report():
    return json.loads(program.must("bench", "papers", "--machines", MACHINES, "--json").out)


def every_number_is_there_and_within_its_bound():
    found = report()
    problems = [] if (found["bench"], found["outside"]) == ("papers", 0) else [str({**found, "tables": []})]
    names = [table["name"] for table in found["tables"]]
    problems += [] if names == list(TABLES) else [f"the tables are {names}"]
    return problems + [problem for table in found["tables"] for problem in wrong_table(table)]


def memory_by_stage_is_beside_the_formulas_of_zero():
    table = report()["tables"][0]
    problems = []
    for row in table["rows"]:
        model, ranks = row["name"].split(", ")
        ranks = int(ranks)
        formulas = (4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)
        for number, formula in zip(row["numbers"], formulas):
            expected = SIZES[model] * formula * 1e-9
            problems += [] if math.isclose(number["paper"], expected, rel_tol=1e-9) else [f"{row['name']}: {number}"]
    return problems


def tables_are_for_people():
    text = program.must("bench", "papers").out
    problems = [f"too wide: {line}" for line in text.splitlines() if len(line) > 80]
    problems += ["a number is outside of its bound"] if "OUTSIDE" in text or "the equation gives" in text else []
    shown = [(table["title"], *(row["name"] for row in table["rows"])) for table in report()["tables"]]
    return problems + [f"'{name}' is not there" for names in shown[:PREDICTED] for name in names if name not in text]


def machines_that_are_not_there_are_refused():
    ended = program.run("bench", "papers", "--machines", os.path.join(program.scratch_folder(), "nowhere"))
    return [] if ended.code == 1 and "nowhere/h100.json" in ended.err else [str(ended)]


script_test.run(every_number_is_there_and_within_its_bound, memory_by_stage_is_beside_the_formulas_of_zero,
                tables_are_for_people, machines_that_are_not_there_are_refused)
