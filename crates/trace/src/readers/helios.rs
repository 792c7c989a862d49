//! The jobs of SenseTime's Helios clusters (Hu et al., SC 2021): the published `cluster_log.csv`, and the reduced tables
//! of the Venus cluster.

use crate::readers::auto::Head;
pub(crate) use crate::readers::cluster_log::read;

pub(crate) const OPTIONS: &[&str] = &["states", "cores", "workers"];

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let original = head.has_all(&["gpu_num", "vc", "state", "submit_time"]);
    let reduced = head.has_all(&["submit_time", "num_gpus", "duration_s", "clamped"])
        || head.has_all(&["vc", "submit_s", "num_gpus", "num_nodes", "duration_s", "state"]);
    (original || reduced).then(|| format!("the header has {}", head.header()))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};
    use cluster::Scaling;

    const LOG: &str = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
        5,u1,vcA,16,64,2,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 00:02:00,60,50\n\
        6,u2,vcB,0,4,1,FAILED,2020-04-01 00:00:20,2020-04-01 00:01:00,2020-04-01 00:02:00,60,40\n\
        7,u2,vcB,1,4,1,CANCELLED,2020-04-01 00:00:30,,,,\n";

    #[test]
    fn the_log_is_read_and_jobs_without_gpus_are_left_out() {
        assert_eq!(lines("helios", LOG, ""), ["0s 5 u1 16 60s"]);
        assert!(assumes("helios", LOG, "", "1 jobs are left out: without GPUs (zero_gpu=drop; or keep, refuse)"));
        assert!(assumes("helios", LOG, "", "1 jobs are left out: that never started or never ended"));
        assert!(assumes("helios", LOG, "", "columns that are not looked at: queue"));
    }

    #[test]
    fn cores_nodes_and_jobs_without_gpus_can_be_kept() {
        let jobs = read("helios", LOG, "zero_gpu=keep&cores=keep&workers=node&names=keep").unwrap().jobs;
        assert_eq!(jobs[0].spec.scaling, Scaling::Rigid(2));
        let worker = &jobs[0].spec.roles[0];
        assert_eq!((worker.slice.map(|slice| slice.count), worker.millicores), (Some(8), 32_000));
        assert_eq!((jobs[1].spec.uses_gpus(), jobs[1].spec.roles[0].millicores), (false, 4000));
    }

    #[test]
    fn the_reduced_tables_are_read() {
        let venus = "job_id,submit_time,num_gpus,duration_s,clamped,user,vc,num_nodes,state\n\
                     1,2020-03-18 04:01:39,32,172800,1,,,,\n2,2020-03-18 04:01:40,1,7,0,u,v,1,COMPLETED\n";
        assert_eq!(lines("helios", venus, ""), ["0s 1 unknown 32 172800s", "1s 2 u 1 7s"]);
        assert!(assumes("helios", venus, "", "1 jobs are marked as cut off at 48 h in the file; they ran longer"));
        let september = "job_id,user,vc,submit_s,num_gpus,num_nodes,duration_s,state\n3,u,v,5.0,8,1,24.0,CANCELED\n";
        assert_eq!(lines("helios", september, ""), ["5s 3 u 8 24s"]);
    }

    #[test]
    fn a_job_that_ends_before_it_starts_names_file_line_and_column() {
        let log = LOG.replace("02:00,60,50", "00:30,,50");
        let expected = "FILE:2: column `end_time`: expected a time after the start, by at most 100 years, \
                        found 2020-04-01 00:00:30";
        assert_eq!(fault("helios", &log, ""), expected);
    }
}
