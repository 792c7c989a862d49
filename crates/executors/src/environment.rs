//! The environment of each worker: torchrun's contract, so that unmodified scripts run; Moira's own variables; and of
//! the service's environment only what every program needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cluster::{ClaimId, NodeId};

use crate::assignment::TOKEN_VARIABLE;
use crate::machine::Machine;
use crate::roster::FIRST_GANG;
use crate::run_dir::RunDir;
use crate::{Checkpoints, LaunchOrder, Program, WorkerPlace};

type Variables = BTreeMap<String, String>;

/// What is passed on from the service; all else of its environment stays with it.
const PASSED_ON: [&str; 8] = ["PATH", "LANG", "TZ", "TMPDIR", "HOME", "USER", "LOGNAME", "SHELL"];
/// What is passed on to a job of another user: what is true of the whole machine.
const PASSED_ON_TO_OTHERS: [&str; 2] = ["LANG", "TZ"];
/// By which the processes of one worker are known among those of the run.
pub(crate) const MEMBER_VARIABLE: &str = "MOIRA_MEMBER";
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a worker's environment depends on besides the order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) data_dir: &'a Path,
    pub(crate) checkpoints: &'a Checkpoints,
    pub(crate) token: &'a str,
    pub(crate) port: u16,
    /// The service's own environment.
    pub(crate) service: &'a Variables,
}

/// Which process of the run it is, and in which gang it begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) rank: usize,
    pub(crate) member: u32,
    pub(crate) gang: u32,
}

impl Part {
    pub(crate) fn at_launch(rank: usize) -> Part {
        Part { rank, member: rank as u32, gang: FIRST_GANG }
    }
}

/// The environment of one worker. The contract wins over the program, since a worker with another's rank or devices
/// would disturb others; the service wins over both.
pub(crate) fn environment(order: &LaunchOrder, part: Part, around: Surroundings<'_>) -> Variables {
    let rank = part.rank;
    let place = &order.workers[rank];
    let mut all = inherited(&order.program, around.service);
    all.insert("OMP_NUM_THREADS".into(), threads(place, around.machine).to_string());
    all.extend(order.program.env.clone());
    all.extend(torchrun(order, rank, around.port));
    all.extend(devices(order, place, around.machine));
    all.extend(own(order, place, around));
    all.extend(order.env.clone());
    all.extend(resizing(order, part, around));
    all
}

/// What a job has before it says anything itself.
pub(crate) fn inherited(program: &Program, service: &Variables) -> Variables {
    let names = if program.account.is_some() { &PASSED_ON_TO_OTHERS[..] } else { &PASSED_ON[..] };
    let passed_on = names.iter().filter_map(|&name| Some((name.to_string(), service.get(name)?.clone())));
    let mut all: Variables = passed_on.collect();
    all.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    if let Some(account) = &program.account {
        all.insert("HOME".into(), account.home.display().to_string());
        all.insert("USER".into(), account.name.clone());
        all.insert("LOGNAME".into(), account.name.clone());
        all.insert("SHELL".into(), "/bin/sh".into());
    }
    all
}

fn torchrun(order: &LaunchOrder, rank: usize, port: u16) -> Variables {
    let place = &order.workers[rank];
    let nodes = nodes_of(order);
    let of_node = |worker: &&WorkerPlace| worker.node == place.node;
    let of_role = |worker: &&WorkerPlace| worker.role == place.role;
    let before = &order.workers[..rank];
    let local_size = order.workers.iter().filter(of_node).count();
    let role = if place.role == 0 { "worker".to_string() } else { format!("role{}", place.role) };
    variables([
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", order.workers.len().to_string()),
        ("LOCAL_RANK", before.iter().filter(of_node).count().to_string()),
        ("LOCAL_WORLD_SIZE", local_size.to_string()),
        ("GROUP_RANK", node_rank(&nodes, place.node).to_string()),
        ("GROUP_WORLD_SIZE", nodes.len().to_string()),
        ("ROLE_NAME", role),
        ("ROLE_RANK", before.iter().filter(of_role).count().to_string()),
        ("ROLE_WORLD_SIZE", order.workers.iter().filter(of_role).count().to_string()),
        ("TORCHELASTIC_RESTART_COUNT", order.restarts.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", order.restarts.to_string()),
        ("TORCHELASTIC_RUN_ID", format!("moira-{}", order.run.claim)),
        ("PET_NNODES", nodes.len().to_string()),
        ("PET_NPROC_PER_NODE", local_size.to_string()),
        ("PET_NODE_RANK", node_rank(&nodes, place.node).to_string()),
        ("PET_MASTER_ADDR", "127.0.0.1".into()),
        ("PET_MASTER_PORT", port.to_string()),
    ])
}

/// All devices of the run on the worker's node, in order of local rank: scripts choose theirs by `LOCAL_RANK`. Of MIG
/// instances only the worker's own, since a process can use no more than the first it is shown.
fn devices(order: &LaunchOrder, place: &WorkerPlace, machine: &Machine) -> Variables {
    let mut seen = BTreeSet::new();
    let are_instances = place.devices.iter().any(|&device| machine.is_instance(place.node, device));
    let on_node: Vec<u8> = order
        .workers
        .iter()
        .filter(|worker| if are_instances { *worker == place } else { worker.node == place.node })
        .flat_map(|worker| worker.devices.iter().copied())
        .filter(|device| seen.insert(*device))
        .collect();
    let visible: Vec<&str> = on_node.iter().filter_map(|&device| machine.uuid(place.node, device)).collect();
    let named: Vec<String> =
        place.devices.iter().filter_map(|&device| machine.device_name(place.node, device)).collect();
    variables([("CUDA_VISIBLE_DEVICES", visible.join(",")), ("MOIRA_DEVICES", named.join(","))])
}

fn own(order: &LaunchOrder, place: &WorkerPlace, around: Surroundings<'_>) -> Variables {
    let nodes = nodes_of(order);
    let dir = RunDir::of(around.data_dir, order.run);
    let gpus: usize = order.workers.iter().filter(|it| it.node == place.node).map(|it| it.devices.len()).sum();
    let ClaimId(claim) = order.run.claim;
    let mut all = variables([
        ("MOIRA_JOB_ID", claim.to_string()),
        ("MOIRA_ATTEMPT", order.run.attempt.to_string()),
        ("MOIRA_JOB_NAME", order.program.job_name.clone()),
        ("MOIRA_QUEUE", order.program.queue.clone()),
        ("MOIRA_NUM_NODES", nodes.len().to_string()),
        ("MOIRA_NODE_RANK", node_rank(&nodes, place.node).to_string()),
        ("MOIRA_NODE_IPS", vec!["127.0.0.1"; nodes.len()].join("\n")),
        ("MOIRA_GPUS_PER_NODE", gpus.to_string()),
        ("MOIRA_RESTART_COUNT", order.restarts.to_string()),
        ("MOIRA_GENERATION", order.run.attempt.to_string()),
        ("MOIRA_CHECKPOINT_DIR", around.checkpoints.of(order.run.claim).display().to_string()),
        ("MOIRA_PROGRESS_FILE", dir.file("progress.jsonl").display().to_string()),
        ("MOIRA_TUNING_FILE", dir.file("tuning.json").display().to_string()),
        ("MOIRA_TOKEN_FILE", dir.token_file().display().to_string()),
        (TOKEN_VARIABLE, around.token.to_string()),
    ]);
    if let Some(tuning) = order.tuning {
        all.insert("MOIRA_LOCAL_BATCH".into(), tuning.local.to_string());
        all.insert("MOIRA_ACCUMULATION".into(), tuning.accumulations.to_string());
    }
    all
}

/// By which a worker takes part when the run is resized.
fn resizing(order: &LaunchOrder, part: Part, around: Surroundings<'_>) -> Variables {
    let dir = RunDir::of(around.data_dir, order.run);
    let mut all = variables([
        (MEMBER_VARIABLE, part.member.to_string()),
        ("MOIRA_GANG", part.gang.to_string()),
        ("MOIRA_RESIZE_FILE", dir.resize_file().display().to_string()),
        ("MOIRA_GANG_DIR", dir.gang_dir().display().to_string()),
    ]);
    if part.gang > FIRST_GANG {
        all.insert("MOIRA_JOINS".into(), "1".into());
    }
    all
}

/// As many threads as the worker has cores, so that libraries do not start one for each core of the machine.
fn threads(place: &WorkerPlace, machine: &Machine) -> u32 {
    let cores = machine.cores_of(place).unwrap_or(f64::from(place.millicores) / 1000.0);
    (cores.ceil() as u32).max(1)
}

/// In order of their first worker.
fn nodes_of(order: &LaunchOrder) -> Vec<NodeId> {
    let mut seen = BTreeSet::new();
    order.workers.iter().map(|worker| worker.node).filter(|&node| seen.insert(node)).collect()
}

fn node_rank(nodes: &[NodeId], node: NodeId) -> usize {
    nodes.iter().position(|&known| known == node).unwrap_or(0)
}

fn variables<const N: usize>(pairs: [(&str, String); N]) -> Variables {
    pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::{Bytes, Run, Span};

    use super::*;
    use crate::nvidia::Gpu;
    use crate::{AcceleratorDraft, Account, Limits, Program};

    fn place(node: u32, role: u16, devices: &[u8]) -> WorkerPlace {
        let devices = devices.to_vec();
        WorkerPlace { node: NodeId(node), role, devices, share_thousandths: 1000, millicores: 0, memory: Bytes::ZERO }
    }

    fn of_worker(rank: usize, program_env: &[(&str, &str)]) -> Variables {
        of_part(Part::at_launch(rank), program_env)
    }

    fn of_part(part: Part, program_env: &[(&str, &str)]) -> Variables {
        of_account(None, part, program_env)
    }

    fn of_account(account: Option<Account>, part: Part, program_env: &[(&str, &str)]) -> Variables {
        let kind = |kind: &str, cores| AcceleratorDraft { cores, ..AcceleratorDraft::of(kind, 2) };
        let machine = Machine::of(&[kind("a100", 1.5), kind("t4", 1.0)]).unwrap();
        let order = order(account, program_env);
        let service = variables([
            ("PATH", "/bin".into()),
            ("HOME", "/root".into()),
            ("TMPDIR", "/root/tmp".into()),
            ("LANG", "C.UTF-8".into()),
            ("AWS_SECRET", "hidden".into()),
        ]);
        let data_dir = Path::new("/data");
        let checkpoints = &Checkpoints::in_data_dir(data_dir);
        environment(
            &order,
            part,
            Surroundings { machine: &machine, data_dir, checkpoints, token: "t", port: 4000, service: &service },
        )
    }

    fn order(account: Option<Account>, program_env: &[(&str, &str)]) -> LaunchOrder {
        let program = Program {
            command: vec!["true".into()],
            workdir: "/".into(),
            env: program_env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            umask: None,
            account,
            limits: Limits::default(),
            notice: Span::ZERO,
            job_name: "bert".into(),
            queue: "nlp".into(),
            input: None,
            terminal: None,
        };
        LaunchOrder {
            run: Run { claim: ClaimId(7), attempt: 2 },
            program: Arc::new(program),
            workers: vec![place(0, 0, &[1]), place(0, 0, &[0]), place(1, 0, &[0]), place(1, 1, &[])],
            env: variables([("FROM_SERVICE", "yes".into())]),
            start_within: Span::from_secs(10),
            restarts: 3,
            tuning: None,
            origin: None,
            limit: None,
            continues: None,
        }
    }

    fn shown(all: &Variables, names: &[&str]) -> String {
        names.iter().map(|&name| all.get(name).map_or("-", String::as_str)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ranks_count_over_all_within_the_node_and_within_the_role() {
        let names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"];
        let all: Vec<String> = (0..4).map(|rank| shown(&of_worker(rank, &[]), &names)).collect();
        assert_eq!(all, ["0 0 0 0 worker", "1 1 0 1 worker", "2 0 1 2 worker", "3 1 1 0 role1"]);
    }

    #[test]
    fn a_newcomer_knows_that_it_joins_a_gang_that_trains() {
        let names = ["RANK", "MOIRA_MEMBER", "MOIRA_GANG", "MOIRA_JOINS", "MOIRA_RESIZE_FILE", "MOIRA_GANG_DIR"];
        let joins = of_part(Part { rank: 2, member: 7, gang: 3 }, &[("MOIRA_MEMBER", "0")]);
        assert_eq!(shown(&joins, &names), "2 7 3 1 /data/runs/7.2/resize.json /data/runs/7.2/gang");
        assert_eq!(shown(&of_worker(2, &[]), &names[..4]), "2 2 1 -");
    }

    #[test]
    fn a_worker_on_a_mig_instance_sees_its_own_and_no_other() {
        let gpu = |kind: &str, uuid: &str, is_instance| Gpu {
            kind: kind.into(),
            uuid: uuid.into(),
            memory_gb: 5.0,
            is_instance,
        };
        let part = |uuid| gpu("a100-mig-1g-5gb", uuid, true);
        let machine = Machine::of_gpus(vec![
            part("MIG-a"),
            part("MIG-b"),
            gpu("h100", "GPU-1", false),
            gpu("h100", "GPU-2", false),
        ]);
        let workers = vec![place(0, 0, &[1]), place(0, 0, &[0]), place(1, 0, &[1]), place(1, 0, &[0])];
        let order = LaunchOrder { workers, ..order(None, &[]) };
        let seen = |rank: usize| {
            shown(&devices(&order, &order.workers[rank], &machine), &["MOIRA_DEVICES", "CUDA_VISIBLE_DEVICES"])
        };
        assert_eq!(
            [seen(0), seen(1), seen(2), seen(3)],
            ["a100-mig-1g-5gb:1 MIG-b", "a100-mig-1g-5gb:0 MIG-a", "h100:1 GPU-2,GPU-1", "h100:0 GPU-2,GPU-1"]
        );
    }

    #[test]
    fn virtual_devices_are_named_and_hidden_from_cuda() {
        let all = of_worker(0, &[("CUDA_VISIBLE_DEVICES", "0,1,2,3")]);
        assert_eq!(shown(&all, &["MOIRA_DEVICES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"]), "a100:1  2");
    }

    #[test]
    fn a_job_of_another_user_has_nothing_of_the_services_user() {
        let ada = Account { uid: 1000, gid: 1000, name: "ada".into(), home: "/home/ada".into() };
        let all = of_account(Some(ada), Part::at_launch(0), &[]);
        let names = ["PATH", "HOME", "USER", "TMPDIR", "LANG"];
        assert_eq!(shown(&all, &names), format!("{DEFAULT_PATH} /home/ada ada - C.UTF-8"));
        assert_eq!(shown(&of_worker(0, &[]), &names), "/bin /root - /root/tmp C.UTF-8");
    }

    #[test]
    fn nothing_else_of_the_service_is_passed_on() {
        let all = of_worker(0, &[("OMP_NUM_THREADS", "9"), ("FROM_SERVICE", "no")]);
        let names = ["PATH", "AWS_SECRET", "OMP_NUM_THREADS", "FROM_SERVICE"];
        assert_eq!(shown(&all, &names), "/bin - 9 yes");
    }
}
