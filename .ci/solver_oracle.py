"""Judges the solver's answers by HiGHS: reads programs with answers as JSON lines (`examples/oracle.rs`) and compares.

Where optimality is claimed the worth must equal the optimum of HiGHS to one part in a million; the bound must never lie
below what HiGHS found, nor the worth above what HiGHS proved possible. HiGHS has a limit of nodes for each program; where
it ends without a proof of its own, its two bounds take the optimum's place, and at most one program in twenty may be such.
"""

import json
import multiprocessing
import sys

import highspy
import numpy as np

TOLERANCE = 1e-6
UNDECIDED = 0.05


def model(program):
    """Columns are choices; rows are claims, kinds and tenants."""
    kinds, tenants = len(program["capacities"]), len(program["quotas"])
    claims = len(program["claims"])
    worths, starts, rows, values = [], [0], [], []
    for index, claim in enumerate(program["claims"]):
        for kind, units, worth in claim["choices"]:
            worths.append(worth)
            entries = [(index, 1.0), (claims + kind, float(units))]
            if claim["tenant"] is not None:
                entries.append((claims + kinds + claim["tenant"], float(units)))
            rows += [row for row, _ in entries]
            values += [value for _, value in entries]
            starts.append(len(rows))
    lp = highspy.HighsLp()
    lp.num_col_ = len(worths)
    lp.num_row_ = claims + kinds + tenants
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.array(worths, dtype=float)
    lp.col_lower_ = np.zeros(len(worths))
    lp.col_upper_ = np.ones(len(worths))
    lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
    lp.row_upper_ = np.array([1.0] * claims + program["capacities"] + program["quotas"], dtype=float)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.array(starts)
    lp.a_matrix_.index_ = np.array(rows)
    lp.a_matrix_.value_ = np.array(values, dtype=float)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(worths)
    return lp


def optimum(program):
    """What HiGHS found, and what it proved to be the most possible."""
    if not any(claim["choices"] for claim in program["claims"]):
        return 0.0, 0.0
    highs = highspy.Highs()
    for option, value in [
        ("output_flag", False),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 0.5),
        ("mip_max_nodes", 100),
    ]:
        highs.setOptionValue(option, value)
    highs.passModel(model(program))
    highs.run()
    info = highs.getInfo()
    if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        return info.objective_function_value, info.objective_function_value
    return max(info.objective_function_value, 0.0), info.mip_dual_bound


def faults(program, found, most):
    near = TOLERANCE * max(abs(found), 1.0)
    if program["proof"] != "None" and program["worth"] < found - near:
        yield f"claims optimality at {program['worth']}, HiGHS found {found}"
    if program["worth"] > most + near:
        yield f"is worth {program['worth']}, HiGHS proved {most} the most"
    if program["bound"] < found - near:
        yield f"bound {program['bound']} lies below {found}, which HiGHS found"


def judge(line):
    program = json.loads(line)
    found, most = optimum(program)
    undecided = most - found > TOLERANCE * max(abs(found), 1.0)
    texts = [f"seed {program['seed']}: {fault}" for fault in faults(program, found, most)]
    return program["proof"] != "None", undecided, texts


def main():
    with multiprocessing.Pool() as pool:
        verdicts = pool.map(judge, sys.stdin, chunksize=8)
    texts = [text for _, _, texts in verdicts for text in texts]
    proven = sum(proven for proven, _, _ in verdicts)
    undecided = sum(undecided for _, undecided, _ in verdicts)
    for text in texts:
        print(text)
    count = len(verdicts)
    print(f"{count} programs, {proven} claimed optimal, {undecided} undecided by HiGHS, {len(texts)} faults")
    if texts or count == 0 or undecided > UNDECIDED * count:
        sys.exit(1)


if __name__ == "__main__":
    main()
