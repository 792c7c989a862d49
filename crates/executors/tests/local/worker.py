"""A worker of the tests: it speaks the protocol of docs/guides/progress.md with the standard library alone. A step is
a look around, and a gang meets by counting who is there. `FAULT` makes it misbehave, `REPORT` makes it say how it does."""

import json, os, sys, time
env, shared = os.environ, os.environ["SHARED"]
member, gang, rank, size = (int(env[name]) for name in ("MOIRA_MEMBER", "MOIRA_GANG", "RANK", "WORLD_SIZE"))
fault, signs = env.get("FAULT", ""), env["MOIRA_GANG_DIR"]
present = list(range(size))

def sign(name, *numbers):
    return "/".join([signs, ".".join([name, *map(str, numbers)])])

def called():
    try:
        with open(env["MOIRA_RESIZE_FILE"]) as file:
            return json.load(file)
    except FileNotFoundError:
        return {"gang": 1}

def verdict(gang):
    try:
        with open(sign("verdict", gang)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""

def give_verdict(gang):
    try:
        file = os.open(sign("verdict", gang), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, b"go")
    except FileExistsError:
        pass

def meet(call):
    global rank, size, present
    present = [entry["member"] for entry in call["members"]]
    rank, size = present.index(member), len(present)
    open("%s/met.%d.%d" % (shared, call["gang"], rank), "w").close()
    while any(not os.path.exists("%s/met.%d.%d" % (shared, call["gang"], other)) for other in range(size)):
        time.sleep(0.01)
    batch = call.get("local_batch", "-")
    print("member", member, "is", rank, "of", size, "in gang", call["gang"], "with batch", batch, flush=True)
    if rank == 0:
        open(sign("done", call["gang"]), "w").close()

def report(**figures):
    if rank == 0 and "REPORT" in env:
        line = json.dumps({"run": env["MOIRA_ATTEMPT"], "resizable": True, **figures}) + "\n"
        with open(env["MOIRA_PROGRESS_FILE"], "a") as file:
            file.write(line)

with open("%s/pid.%d" % (shared, member), "w") as file:
    file.write("%d\n" % os.getpid())
if env.get("MOIRA_JOINS") == "1":
    if fault == "newcomer dies":
        sys.exit(9)
    if fault == "newcomer hangs":
        time.sleep(60)
    open(sign("ready", gang, member), "w").close()
    while verdict(gang) != "go":
        time.sleep(0.01)
    meet(called())
seen, steps = gang, 0
while not os.path.exists(shared + "/end"):
    time.sleep(0.02)
    steps += 1
    if steps % 20 == 1:
        report(steps=steps, step_seconds=0.1, compute_seconds=0.09, local_batch=64, noise={"sqr": 1, "var": 1000})
    call = called()
    if call["gang"] <= seen or fault == "nobody answers":
        continue
    members = [entry["member"] for entry in call["members"]]
    ready = all(os.path.exists(sign("ready", call["gang"], it)) for it in members if it not in present)
    if rank == 0 and ready and not os.path.exists(shared + "/wait"):
        give_verdict(call["gang"])
    said = verdict(call["gang"])
    if said:
        seen = call["gang"]
    if said == "go" and member not in members:
        time.sleep(60 if fault == "leaver stays" else 0)
        sys.exit(143)
    if said == "go" and fault == "survivor crashes":
        sys.exit(7)
    if said == "go" and fault == "nobody switches":
        time.sleep(60)
    if said == "go":
        began = time.time()
        meet(call)
        report(restart={"kind": "resize", "phases": {"process_group": time.time() - began}})
print("member", member, "ends well", flush=True)
