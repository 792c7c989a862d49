//! Pods and nodes of Alibaba's "openb" cluster (Weng et al., ATC 2023; cluster-trace-gpu-v2023), where many pods share a
//! GPU.

use std::collections::BTreeSet;
use std::path::Path;

use cluster::{Bytes, ClusterDraft, KindDraft, NodeDraft};

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gang, Gathering, Job, Request, Wanted, between, no_gpus, required_gpus, required_seconds, seconds, span,
};
use crate::table::{Layout, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["states", "cores", "kinds", "qos", "unscheduled", "interval_s", "duration_s"];

columns! {
    POD_COLUMNS:
    GPUS = "num_gpu", SHARE = "gpu_milli", NAME = "name", CORES = "cpu_milli", MEMORY = "memory_mib",
    SPEC = "gpu_spec", QOS = "qos", PHASE = "pod_phase", CREATED = "creation_time", DELETED = "deletion_time",
    SCHEDULED = "scheduled_time",
}
const PODS: Layout = Layout::named(POD_COLUMNS, 2);

/// Longer lists of nodes are refused.
const MOST_NODES: usize = 10_000;

columns! {
    NODE_COLUMNS:
    NODE = "sn", NODE_CORES = "cpu_milli", NODE_MEMORY = "memory_mib", NODE_GPUS = "gpu", MODEL = "model",
}
const NODES: Layout = Layout::named(NODE_COLUMNS, 5);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    head.has_all(&["num_gpu", "gpu_milli"]).then(|| "the header has num_gpu and gpu_milli".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let options = request.options;
    let mut gathering = Gathering::new(request)?;
    let cores = options.choice("cores", &["keep", "drop"])? == "keep";
    let ranked = options.choice("qos", &["ignore", "priority"])? == "priority";
    let all = options.choice("unscheduled", &["drop", "keep"])? == "keep";
    let (interval, duration) = (options.real("interval_s")?, options.real("duration_s")?);
    let mut table = Table::lay_out(request.path, PODS)?;
    let timed = table.has(CREATED) && table.has(DELETED);
    if !timed && (interval.is_none() || duration.is_none()) {
        let what = "the list says neither when pods came nor how long they ran: \
                    add `?interval_s=…&duration_s=…` to let them come one after the other";
        return Err(Error::File { file: table.file().into(), what: what.into() });
    }
    gathering.id_column = table.name(NAME).into();
    gathering.assume(match timed {
        true => "the time from scheduling to deletion is taken as work".to_string(),
        false => format!(
            "pods come in the order of the list, one every {} s, and run {} s: the list has no times",
            interval.unwrap_or(0.0),
            duration.unwrap_or(0.0)
        ),
    });
    gathering.assume("a pod with less than 1000 thousandths takes a share of one GPU, of no device memory");
    gathering.assume(match cores {
        true => "pods take the CPU cores and the memory they ask for (cores=keep; or drop)",
        false => "CPU cores and memory are not looked at (cores=drop; or keep)",
    });
    gathering.assume(match ranked {
        true => "latency-sensitive and guaranteed pods have priority 1, others 0 (qos=priority)",
        false => "classes of service are not looked at (qos=ignore; or priority)",
    });
    gathering.assume("pods run equally fast on all kinds of GPU (kinds=match binds them to those they name)");
    gathering.assume("interruptions cost nothing");
    let mut arrivals = 0.0;
    gathering.read(&mut table, |row, gathering| {
        if !gathering.wants_state(row.text(PHASE)) {
            return Ok(None);
        }
        let gpus = required_gpus(row, GPUS)?;
        let (submitted, work) = if timed {
            let created = required_seconds(row, CREATED)?;
            let scheduled = seconds(row, SCHEDULED)?;
            if scheduled.is_none() && !all {
                gathering.leave_out("never scheduled (unscheduled=drop; keep lets them run from creation to deletion)");
                return Ok(None);
            }
            let deleted = required_seconds(row, DELETED)?;
            (created, between(row, scheduled.unwrap_or(created), deleted, DELETED)?)
        } else {
            arrivals += interval.unwrap_or(0.0) * 1000.0;
            let wait = interval.unwrap_or(0.0) * 1000.0;
            ((arrivals - wait) as i64, span((duration.unwrap_or(0.0) * 1000.0) as i64))
        };
        let millicores = row.whole(CORES, 0..=u32::MAX)?.unwrap_or(0);
        let wanted = Wanted { gpus, nodes: None, millicores: Some(millicores.into()) };
        let Some(mut gang) = gathering.gang(wanted, || no_gpus(row, GPUS))? else { return Ok(None) };
        let share = row.whole(SHARE, 0..=1000_u16)?.unwrap_or(1000);
        if gpus == 1 && (1..1000).contains(&share) {
            gang = Gang::shared(1, share);
        } else if gpus > 0 {
            // A pod is one container: all its GPUs are on one node.
            gang = Gang::whole(1, gpus);
        }
        if cores {
            gang.millicores = millicores;
            gang.memory = Bytes::mib(row.whole(MEMORY, 0..=1_u64 << 40)?.unwrap_or(0));
        }
        let kinds = gathering.kinds(row.list(SPEC));
        let kinds = if gpus > 0 { kinds } else { Vec::new() };
        let priority = i32::from(ranked && matches!(row.text(QOS), Some("LS" | "Guaranteed")));
        let id = row.text(NAME).map(String::from);
        Ok(Some(Job { id, kinds, priority, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    gathering.finish()
}

/// The cluster of a node list `sn,cpu_milli,memory_mib,gpu,model`. All nodes are in one rack: the list has no network.
pub fn read_openb_nodes(path: &Path) -> Result<ClusterDraft, Error> {
    Ok(read_nodes(path)?.0)
}

/// The same, and on which line each node stands.
pub(crate) fn read_nodes(path: &Path) -> Result<(ClusterDraft, Vec<u64>), Error> {
    let mut table = Table::lay_out(path, NODES)?;
    let mut kinds = BTreeSet::new();
    let (mut nodes, mut lines) = (Vec::new(), Vec::new());
    while let Some(row) = table.next_row()? {
        if nodes.len() == MOST_NODES {
            return Err(row.line_fault(format!("expected at most {MOST_NODES} nodes, found more")));
        }
        let name = row.required(NODE, "the name of the node")?;
        let gpus = row.whole(NODE_GPUS, 0..=64_u8)?.unwrap_or(0);
        let kind = if gpus > 0 { Some(row.required(MODEL, "the model of the GPUs")?.to_string()) } else { None };
        kinds.extend(kind.clone());
        lines.push(row.line);
        nodes.push(NodeDraft {
            name: name.into(),
            kind,
            gpus: gpus.into(),
            cores: f64::from(row.whole(NODE_CORES, 0..=u32::MAX)?.unwrap_or(0)) / 1000.0,
            memory_gb: row.whole(NODE_MEMORY, 0..=1_u64 << 40)?.unwrap_or(0) as f64 / 1024.0,
            ..NodeDraft::default()
        });
    }
    let kinds = kinds
        .iter()
        .map(|name| KindDraft { name: name.clone(), ..KindDraft::well_known(&name.to_lowercase()) })
        .collect();
    Ok((ClusterDraft { kinds, nodes, uplinks: Default::default(), queues: Vec::new() }, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::tests::{assumes, fault, lines, read};
    use cluster::Grain;

    const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
        p0,12000,16384,1,460,,LS,Running,5,100,10\n\
        p1,6000,1024,8,1000,T4|V100M32,BE,Succeeded,7,17,7\n\
        p2,3000,1024,0,0,,BE,Failed,8,9,8\n\
        p3,3000,1024,1,1000,,BE,Pending,9,20,\n";

    #[test]
    fn pods_share_gpus_and_keep_their_cores() {
        assert_eq!(lines("openb", PODS, ""), ["5s p0 unknown 0.46 90s", "7s p1 unknown 8 10s"]);
        let jobs = read("openb", PODS, "kinds=match&qos=priority&zero_gpu=keep").unwrap().jobs;
        let worker = &jobs[0].spec.roles[0];
        assert!(matches!(worker.slice.map(|slice| slice.grain), Some(Grain::Share { thousandths: 460, .. })));
        assert_eq!((worker.millicores, worker.memory, jobs[0].spec.priority), (12_000, Bytes::gib(16), 1));
        assert_eq!((jobs[1].spec.kinds.len(), jobs[1].spec.scaling.min()), (1, 1));
        assert_eq!((jobs[2].spec.uses_gpus(), jobs.len()), (false, 3));
        assert!(assumes("openb", PODS, "", "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)"));
    }

    #[test]
    fn pods_that_were_never_scheduled_can_be_kept() {
        assert_eq!(lines("openb", PODS, "unscheduled=keep&states=pending"), ["9s p3 unknown 1 11s"]);
    }

    #[test]
    fn a_list_without_times_needs_to_be_told_them() {
        let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,460\np1,1,1,2,1000\n";
        let expected = "FILE: the list says neither when pods came nor how long they ran: \
                        add `?interval_s=…&duration_s=…` to let them come one after the other";
        assert_eq!(fault("openb", text, ""), expected);
        assert_eq!(
            lines("openb", text, "interval_s=2&duration_s=60"),
            ["0s p0 unknown 0.46 60s", "2s p1 unknown 2 60s"]
        );
    }

    #[test]
    fn a_share_above_one_names_file_line_and_column() {
        let expected = "FILE:2: column `gpu_milli`: expected a whole number from 0 to 1000, found 1460";
        assert_eq!(fault("openb", &PODS.replace("1,460", "1,1460"), ""), expected);
    }

    #[test]
    fn nodes_become_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes.csv");
        let text = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,64000,1024,8,G2\nn2,64000,1024,2,T4\n";
        std::fs::write(&path, text).unwrap();
        let (cluster, _) = read_openb_nodes(&path).unwrap().build().unwrap();
        assert_eq!((cluster.node_count(), cluster.gpus(), cluster.kinds().count()), (3, 10, 2));
        std::fs::write(&path, text.replace("8,G2", "8,")).unwrap();
        let error = read_openb_nodes(&path).unwrap_err().to_string();
        assert!(error.ends_with(":3: column `model`: expected the model of the GPUs, found nothing"), "{error}");
    }
}
